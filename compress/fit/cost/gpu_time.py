"""What of a model's latency on a GPU is computation, and what are launches by the host: by CUDA events."""

from __future__ import annotations

import numpy as np

from compress.fit.cost.serving import Parts, Serving
from evaluation.cost.gpu import time_in_turns

ROUNDS = 20
BOUND = 0.9
"""Share of a call that the host launches kernels for, above which the GPU waits for it."""


def describe_gpu_time(parts: Parts, serving: Serving) -> str | None:
    """One line about a model, for people. parts: of `build_parts`; of texts, one of the middle length is timed.

    None on a CPU, and of other runtimes than torch, whose calls return when all is computed.
    """
    if serving.device == "cpu" or serving.runtime != "torch":
        return None
    call, what = parts[0], "a batch"
    if serving.texts is not None:  # each has its tokenization before it
        tokens = serving.texts.tokens
        middle = int(np.argsort(tokens)[len(tokens) // 2])
        call, what = parts[2 * middle + 1], f"{int(tokens[middle])} tokens"
    found = time_in_turns({what: lambda _: call()}, ROUNDS)[what]
    line = f"the parent on the GPU, by CUDA events: {found.device:.2f} ms for {what}"
    if found.host < BOUND * found.device:
        return f"{line}; the host launches its kernels in {found.host:.2f} ms"
    why = "launching its kernels takes the host as long"
    return f"{line}; {why}: fewer layers make it faster, fewer heads and neurons hardly"
