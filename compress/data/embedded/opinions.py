"""Single sentences and whether they come down on the good or the bad side: the default task, and the corpus."""

from __future__ import annotations

from collections.abc import Callable

from compress.data.embedded import frames, lexicon
from compress.data.embedded.grammar import NEGATIVE, POSITIVE, Clause, Writer, text_of
from compress.data.embedded.splits import Row, collect, for_evaluation, stream

LABELS = ("negative", "positive")
SIZES = {"test": 2000, "validation": 1000, "train": 24000, "unlabelled": 60000}
FLIPPED = 0.04  # share of train labels that are wrong, as people's are
DEPTHS = (0,) * 18 + (1,) * 22 + (2,) * 8 + (3,)  # levels of composition, drawn from evenly


def opinions(seed: int, version: str) -> dict[str, list[Row]]:
    """`text` and `label`; the split `unlabelled` has `text` only."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in SIZES.items():
        writer = Writer(stream(version, "opinions", seed, split), held_out=split != "train")
        evaluation = split in ("validation", "test")
        splits[split] = collect(size, lambda w=writer, e=evaluation: _opinion(w, e), seen)
    for row in splits["unlabelled"]:
        del row["label"]
    flips = stream(version, "opinions", seed, "flips")
    for row in splits["train"]:
        if flips.random() < FLIPPED:
            row["label"] = LABELS[row["label"] == LABELS[0]]
    return {split: splits[split] for split in ("train", "validation", "test", "unlabelled")}


def _opinion(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    def sentence() -> Clause:
        writer.fresh()
        return writer.sentence(writer.pick((NEGATIVE, POSITIVE)), writer.pick(DEPTHS))

    clause = draw_fitting_clause(writer, evaluation, sentence)
    text = text_of(clause.words)
    return {"text": text, "label": LABELS[clause.focus.sign > 0]}, [text]


def draw_fitting_clause(writer: Writer, evaluation: bool, make: Callable[[], Clause]) -> Clause:
    """A clause from `make` that belongs on the asked side of the evaluation line."""
    while True:
        clause = make()
        if for_evaluation(text_of(clause.words)) == evaluation:
            return clause


CORPUS_SIZES = {"validation": 400, "train": 8000}


def corpus(seed: int, version: str) -> dict[str, list[Row]]:
    """`text`: documents of four to six sentences, one a line, that open, argue one side and sum up."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in CORPUS_SIZES.items():
        writer = Writer(stream(version, "corpus", seed, split), held_out=True)
        splits[split] = collect(size, lambda w=writer: _document(w), seen)
    return {split: splits[split] for split in ("train", "validation")}


def _document(writer: Writer) -> tuple[Row, list[str]]:
    setting = writer.pick(range(len(lexicon.SETTINGS)))
    sign = writer.pick((NEGATIVE, POSITIVE))

    def sentence() -> Clause:
        writer.fresh(setting)
        return writer.sentence(sign, writer.pick(DEPTHS))

    body = [text_of(draw_fitting_clause(writer, False, sentence).words) for _ in range(writer.pick((2, 3, 3, 4)))]
    ends = [
        writer.pick(lines).replace("<place>", writer.setting[0]) for lines in (frames.OPENINGS, frames.VERDICTS[sign])
    ]
    return {"text": "\n".join((ends[0], *body, ends[1]))}, body
