"""What the heads of a model answer, by name: task, mlm, pair (two texts, NSP or SOP) and rtd (replaced tokens)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from compress.contracts import EncoderOutput, Needs


def needs_of(heads: Iterable[str], *, pooled: bool = False) -> Needs:
    """All that these heads answer, of every token. pooled: the pooler's vectors too. Other names ask for nothing."""
    named = frozenset(heads)
    return Needs(
        logits="task" in named,
        pair_logits="pair" in named,
        mlm="all" if "mlm" in named else None,
        replaced="rtd" in named,
        pooled=pooled,
    )


def answer_of(output: EncoderOutput, head: str | None) -> Tensor:
    """What a head answered that was asked by `needs_of`: (B, C), of tokens (T, C), (T, V) of mlm, (T,) of rtd.

    None: the last hidden states, (T, D). Of a padded output (B, L) stands for T.
    """
    if head is None:
        return output.last_hidden
    if head == "mlm":
        assert output.vocabulary is not None
        return output.vocabulary.logits()
    found = {"task": output.logits, "pair": output.pair_logits, "rtd": output.replaced}[head]
    assert found is not None
    return found
