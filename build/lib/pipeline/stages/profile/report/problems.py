"""The assignment's questions about the profile, answered from the captures."""

from collections.abc import Sequence

from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Problem
from pipeline.report.section import counted, listing, ms, percent, ratio
from pipeline.stages.profile.cell import BACKWARD_BY_PART
from pipeline.stages.profile.report.facts import MATMUL, PASS_WORDS, Capture, having, lead
from pipeline.stages.profile.report.shown_names import shown_name

NAMED_CATEGORIES = 3


def problems(shown: Sequence[Capture]) -> list[Problem]:
    """Answer each question for which something was captured."""
    answers = {
        "a": _forward_time(shown),
        "b": _first_kernel(lead(shown)),
        "c": _beside_products(lead(shown)),
        "d": _training(shown),
        "e": _softmax(shown),
    }
    return [Problem(f"nsys_profile ({letter})", answer) for letter, answer in answers.items() if answer]


def _forward_time(shown: Sequence[Capture]) -> str:
    """Set the forward pass in the capture beside the host clock, for the main capture and the one furthest off."""
    times = {one: one.times_ms.loc["inference"] for one in shown if "inference" in one.times_ms.index}
    off = {one: clocks["span"] / clocks["host"] - 1 for one, clocks in times.items()}
    off = {one: difference for one, difference in off.items() if difference == difference}  # NaN without both
    if not off:
        return ""
    furthest = max(off, key=lambda one: abs(off[one]))
    said = [
        f"{ms(times[one]['host'])} and {ms(times[one]['span'])} ({off[one]:+.1%}; {one.work} run for "
        f"{ms(times[one]['busy'])} of it) for {one.setting}"
        for one in dict.fromkeys([lead(shown), furthest])
        if one in off
    ]
    return f"A forward pass by the host clock and in the capture: {'; '.join(said)}."


def _first_kernel(first: Capture) -> Markdown | None:
    words = {"inference": "a forward pass", "forward_backward": "forward and backward together"}
    said = []
    for path, what in words.items():
        for kernel in first.top_kernels(path).head(1).to_dict("records"):
            said.append(
                f"in {what} {code(shown_name(kernel['kernel']))}, {ms(kernel['time_ms'])} in "
                f"{counted(kernel['count'], 'call')} ({percent(kernel['time_ms'] / first.total_ms(path))})"
            )
    return Markdown(f"{first.setting}: {'; '.join(said)}.") if said else None


def _beside_products(first: Capture) -> Markdown | None:
    if "inference" not in first.work_ms.index:
        return None
    shares = first.shares("inference").drop(MATMUL, errors="ignore")
    kinds = listing(f"{name} {percent(share)}" for name, share in shares[:NAMED_CATEGORIES].items() if share)
    others = first.top_kernels("inference").query("category != @MATMUL")[["kernel", "time_ms"]]
    largest = [
        f"; the first of them is {code(shown_name(name))} with {ms(time_ms)}" for name, time_ms in others.to_numpy()[:1]
    ]
    return Markdown(
        f"{first.setting}: all but matrix products takes {percent(shares.sum())} of the forward pass: {kinds}"
        f"{''.join(largest)}."
    )


def _training(shown: Sequence[Capture]) -> str:
    said = [
        f"in {one.cell.precision} from {percent(one.share('inference', MATMUL))} of a {PASS_WORDS['inference']} to "
        f"{percent(one.share('train_step', MATMUL))} of a {PASS_WORDS['train_step']}, where the optimizer takes "
        f"{percent(one.share('train_step', 'optimizer'))}"
        for one in having(shown, "train_step", lead(shown))
        if "inference" in one.work_ms.index
    ]
    return f"Matrix products of {lead(shown).cell.size} go {'; '.join(said)}." if said else ""


def _softmax(shown: Sequence[Capture]) -> str:
    passes = {"inference": "", BACKWARD_BY_PART: " backwards"}
    said = [
        f"{one.cell.precision}{passes[path]} {ms(part['softmax_ms'])} against {ms(part['products_ms'])}, "
        f"{ratio(part['time_ratio'])} the time for 1/{part['flops_ratio']:.0f} of the FLOPs"
        for one in shown
        if one.cell.size == lead(shown).cell.size
        for path, part in one.attention.reindex(list(passes)).dropna().iterrows()
    ]
    size = lead(shown).cell.size
    words = f"Softmax with its casts against the two products of attention ({size})"
    return f"{words}: {'; '.join(said)}." if said else ""
