"""What the forward pass of the measured transformer leaves for its backward pass, by part of the model.

`pipeline.formulas.activations` counts it, term by term; here its terms are gathered as the questions ask for them.
"""

from pipeline.formulas import activations
from pipeline.formulas.activations import Workload

ATTENTIONS = ("eager", "flash")


def bytes_by_part(workload: Workload) -> dict[str, int]:
    """Count the bytes that each part of the model keeps, nothing recomputed and without copies of its weights.

    norms, attention, scores and feed_forward of all layers: scores are what attention needs of its softmax (eager: the
    output; flash: the log-sum-exps), attention is the rest of it. head: the last norm, the head's input and the loss.
    """
    attention = activations.attention_block_bytes(workload)
    feed_forward = activations.feed_forward_block_bytes(workload)
    norms = attention.pop("norms") + feed_forward.pop("norms")
    scores = activations.softmax_bytes(workload)
    of_layer = {
        "norms": norms,
        "attention": sum(attention.values()) - scores,
        "scores": scores,
        "feed_forward": sum(feed_forward.values()),
    }
    layers = {part: workload.size.num_layers * count for part, count in of_layer.items()}
    return {**layers, "head": sum(activations.head_bytes(workload).values())}


def attention_bytes(workload: Workload) -> dict[str, int]:
    """Count the bytes that one layer's attention itself keeps, and its scores while it runs.

    inputs: q, k and v; kept: what it makes and keeps, eager the softmax's output, flash its output and the
    log-sum-exps; most: those of its own making that are there at once at worst in the forward pass: eager, scores and
    softmax; flash, nothing beyond what it keeps.
    """
    core = activations.attention_core_bytes(workload)
    inputs = core.pop("q, k, v")
    kept = sum(core.values())
    return {"inputs": inputs, "kept": kept, "most": kept if workload.is_fused else 2 * kept}
