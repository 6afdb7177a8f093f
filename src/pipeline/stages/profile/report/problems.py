"""The assignment's questions about the profile, answered from the captures."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import counted, listing, ms, percent, ratio
from pipeline.stages.profile.cell import BACKWARD_BY_PART
from pipeline.stages.profile.report.facts import MATMUL, Capture, by_precision, lead, setting
from pipeline.stages.profile.report.shown_names import shown_name

NAMED_CATEGORIES = 3


def problems(shown: Sequence[Capture]) -> list[Problem]:
    """Answer each question for which something was captured."""
    answers = {
        "a": _forward_time(shown),
        "b": _first_kernel(shown),
        "c": _beside_products(shown),
        "d": _training(shown),
        "e": _softmax(shown),
    }
    return [Problem(f"nsys_profile ({letter})", answer) for letter, answer in answers.items() if answer]


def _forward_time(shown: Sequence[Capture]) -> Markdown:
    """Set the forward pass in the capture beside the host clock, for the main capture and the one furthest off."""
    clocks = {one: one.times_ms.loc["inference"] for one in shown if "inference" in one.times_ms.index}
    clocks = {one: times for one, times in clocks.items() if times[["host", "span"]].notna().all()}
    if not clocks:
        return Markdown()
    furthest = max(clocks, key=lambda one: abs(clocks[one]["span"] / clocks[one]["host"] - 1))
    first = lead(shown)
    said = [_clocks(one, clocks[one]) for one in dict.fromkeys([first, furthest]) if one in clocks]
    return say("A forward pass by the host clock and in the capture: {said}.", said=Markdown("; ").join(said))


def _clocks(capture: Capture, times_ms: pd.Series) -> Markdown:
    return say(
        "{host} and {span} ({difference}; {work} run for {busy} of it) for {setting}",
        host=ms(times_ms["host"]),
        span=ms(times_ms["span"]),
        difference=f"{times_ms['span'] / times_ms['host'] - 1:+.1%}",
        work=capture.work,
        busy=ms(times_ms["busy"]),
        setting=setting(capture),
    )


def _first_kernel(shown: Sequence[Capture]) -> Markdown:
    first = lead(shown)
    words = {"inference": "a forward pass", "forward_backward": "forward and backward together"}
    said = []
    for path, what in words.items():
        top = first.top_kernels(path)
        if len(top):
            name, calls, time_ms = top.iloc[0][["kernel", "count", "time_ms"]]
            sentence = say(
                "in {what} {name}, {time} in {calls} ({share})",
                what=what,
                name=code(shown_name(name)),
                time=ms(time_ms),
                calls=counted(calls, "call"),
                share=percent(time_ms / first.total_ms(path)),
            )
            said.append(sentence)
    return say("{setting}: {said}.", setting=setting(first), said=Markdown("; ").join(said)) if said else Markdown()


def _beside_products(shown: Sequence[Capture]) -> Markdown:
    first = lead(shown)
    if "inference" not in first.work_ms.index:
        return Markdown()
    shares = first.shares("inference").drop(MATMUL, errors="ignore")
    kinds = [f"{name} {percent(share)}" for name, share in shares[:NAMED_CATEGORIES].items() if share]
    top = first.top_kernels("inference")
    others = top[top["category"] != MATMUL]
    largest = Markdown()
    if len(others):
        name, time_ms = others.iloc[0][["kernel", "time_ms"]]
        largest = say("; the first of them is {name} with {time}", name=code(shown_name(name)), time=ms(time_ms))
    return say(
        "{setting}: all but matrix products takes {share} of the forward pass: {kinds}{largest}.",
        setting=setting(first),
        share=percent(shares.sum()),
        kinds=listing(kinds),
        largest=largest,
    )


def _training(shown: Sequence[Capture]) -> Markdown:
    said = [
        say(
            "in {precision} from {inference} of a forward pass to {training} of a training step, where the optimizer "
            "takes {optimizer}",
            precision=one.cell.precision,
            inference=percent(one.share("inference", MATMUL)),
            training=percent(one.share("train_step", MATMUL)),
            optimizer=percent(one.share("train_step", "optimizer")),
        )
        for one in by_precision(shown, lead(shown))
        if {"inference", "train_step"} <= set(one.work_ms.index)
    ]
    if not said:
        return Markdown()
    size = lead(shown).cell.size
    return say("Matrix products of {size} go {said}.", size=size, said=Markdown("; ").join(said))


def _softmax(shown: Sequence[Capture]) -> Markdown:
    said = []
    for one in by_precision(shown, lead(shown)):
        for path, what in (("inference", ""), (BACKWARD_BY_PART, " backwards")):
            if path in one.attention:
                part = one.attention[path]
                sentence = say(
                    "{precision}{what} {softmax} against {products}, {ratio} the time for 1/{flops} of the FLOPs",
                    precision=one.cell.precision,
                    what=what,
                    softmax=ms(part.softmax_ms),
                    products=ms(part.products_ms),
                    ratio=ratio(part.time_ratio),
                    flops=f"{part.flops_ratio:.0f}",
                )
                said.append(sentence)
    if not said:
        return Markdown()
    words = "Softmax against the two products of attention ({size}): {said}."
    return say(words, size=lead(shown).cell.size, said=Markdown("; ").join(said))
