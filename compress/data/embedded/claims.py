"""Single sentences and what they hold: praise, complaints, something named in passing."""

from __future__ import annotations

from compress.data.embedded.grammar import NEGATIVE, POSITIVE, Clause, Writer, text_of
from compress.data.embedded.opinions import DEPTHS, draw_fitting_clause
from compress.data.embedded.splits import Row, collect, stream

LABELS = ("praise", "complaint", "aside")
SIZES = {"test": 1500, "validation": 750, "train": 12000}


def claims(seed: int, version: str) -> dict[str, list[Row]]:
    """`text` and `labels`, any number of them."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in SIZES.items():
        writer = Writer(stream(version, "claims", seed, split), held_out=split != "train")
        splits[split] = collect(size, lambda w=writer, e=split != "train": _claimed(w, e), seen)
    return {split: splits[split] for split in ("train", "validation", "test")}


def _claimed(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    def sentence() -> Clause:
        writer.fresh()
        return writer.sentence(writer.pick((NEGATIVE, POSITIVE)), writer.pick(DEPTHS))

    clause = draw_fitting_clause(writer, evaluation, sentence)
    text, settled = text_of(clause.words), [j for j in clause.judgements if j.settled]
    holds = (
        any(j.sign > 0 for j in settled),
        any(j.sign < 0 for j in settled),
        writer.passing is not None,
    )
    return {"text": text, "labels": [label for label, held in zip(LABELS, holds, strict=True) if held]}, [text]
