"""Which tokens a token sees: everything, or a window around it and the global tokens (Longformer, 2004.05150).

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.encoder.config import checks
from compress.errors import UserError


@dataclass(frozen=True)
class AttentionPattern:
    """What one layer's tokens see within their sequence.

    window: token i sees token j when |i - j| <= window, so 2·window + 1 tokens with itself; None: every token.
    global_tokens: the first n tokens of each sequence see all others and are seen by all.
    """

    window: int | None = None
    global_tokens: int = 0

    def is_full(self, length: int) -> bool:
        """Whether in a sequence of `length` tokens every token sees every other."""
        return self.window is None or length <= self.window + 1 or length <= self.global_tokens


FULL = AttentionPattern()


def check_windows(windows: Sequence[int | None] | None, global_tokens: object, depth: int, positions: int) -> None:
    """Raise UserError unless `windows` has a legal entry for each of `depth` layers, or is None without globals."""
    checks.integer("global_tokens", global_tokens, least=0, most=positions)
    if windows is None:
        if global_tokens:
            raise UserError(
                f"global_tokens is {global_tokens}, but no layer has a window",
                where="encoder.global_tokens",
                why="with full attention every token already attends to all others",
                do="set windows, or global_tokens 0",
            )
        return
    if len(windows) != depth:
        raise UserError(f"{len(windows)} entries for {depth} layers", where="encoder.windows")
    for layer, window in enumerate(windows):
        if window is not None:
            checks.integer(f"entry {layer}", window, least=1, where="encoder.windows")
