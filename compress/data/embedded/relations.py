"""Two sentences and how they relate: does the second follow from the first, and how near are they in meaning."""

from __future__ import annotations

from compress.data.embedded.grammar import NEGATIVE, POSITIVE, Clause, Thing, Writer, text_of
from compress.data.embedded.opinions import DEPTHS, draw_fitting_clause
from compress.data.embedded.splits import Row, collect, stream

PAIR_LABELS = ("entailment", "neutral", "contradiction")
PAIR_SIZES = {"test": 1500, "validation": 750, "train": 12000}
SIMILARITY_SIZES = {"test": 1000, "validation": 500, "train": 8000}
_CLOSENESS = {0.5: 0.4, 1.0: 0.7, 2.0: 1.0}  # strength of a judgement → how far from the middle of -1..1 it stands


def pairs(seed: int, version: str) -> dict[str, list[Row]]:
    """`sentence1`, `sentence2` (a plain or negated judgement), `label`."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in PAIR_SIZES.items():
        writer = Writer(stream(version, "pairs", seed, split), held_out=split != "train")
        splits[split] = collect(size, lambda w=writer, e=split != "train": _pair(w, e), seen)
    return {split: splits[split] for split in ("train", "validation", "test")}


def _pair(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    premise = draw_fitting_clause(writer, evaluation, lambda: _sentence(writer))
    label = writer.pick(PAIR_LABELS)
    if label == "neutral":
        thing, sign = _open_question(writer, premise), writer.pick((NEGATIVE, POSITIVE))
    else:
        known = writer.pick([j for j in premise.judgements if j.settled])
        thing, sign = (known.noun, known.kind), known.sign if label == "entailment" else -known.sign
    text = text_of(premise.words)
    return {"sentence1": text, "sentence2": text_of(_claim(writer, thing, sign).words), "label": label}, [text]


def _open_question(writer: Writer, premise: Clause) -> Thing:
    """Something that the premise leaves open: half asserted and half denied, named in passing, or not there at all."""
    opened: list[Thing] = [(j.noun, j.kind) for j in premise.judgements if not j.settled]
    if writer.passing is not None:
        opened.append(writer.passing)
    return writer.pick(opened) if opened and writer.chance(0.7) else writer.thing()


def _claim(writer: Writer, thing: Thing, sign: int) -> Clause:
    make = writer.negated if writer.chance(0.3) else writer.plain
    return writer.finished(Clause(), make(sign, thing))


def similarity(seed: int, version: str) -> dict[str, list[Row]]:
    """`sentence1`, `sentence2`, `score`: about · (2 + 3 · closeness), from 0 to 5.

    about: 1 for the same thing, 0.5 for things of one setting, 0 otherwise.  closeness: 1 for equal judgements, down to
    0 for a strong praise beside a strong complaint.
    """
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in SIMILARITY_SIZES.items():
        writer = Writer(stream(version, "similarity", seed, split), held_out=split != "train")
        splits[split] = collect(size, lambda w=writer, e=split != "train": _similar(w, e), seen)
    return {split: splits[split] for split in ("train", "validation", "test")}


def _similar(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    first = draw_fitting_clause(writer, evaluation, lambda: _sentence(writer))
    setting, focus = writer.setting, first.focus
    draw = writer.pick((0.0, 0.5, 0.5, 1.0, 1.0))

    def other() -> Clause:
        writer.fresh()
        while (writer.setting == setting) != (draw > 0):
            writer.fresh()
        sign = writer.pick((NEGATIVE, POSITIVE))
        if draw == 1.0:
            return _claim(writer, (focus.noun, focus.kind), sign)
        return writer.sentence(sign, writer.pick(DEPTHS))

    second = draw_fitting_clause(writer, evaluation, other)
    about = 1.0 if second.focus.noun == focus.noun else draw
    places = [j.sign * _CLOSENESS[j.strength] for j in (focus, second.focus)]
    score = round(about * (2 + 3 * (1 - abs(places[0] - places[1]) / 2)), 2)
    texts = [text_of(first.words), text_of(second.words)]
    return {"sentence1": texts[0], "sentence2": texts[1], "score": score}, texts


def _sentence(writer: Writer) -> Clause:
    writer.fresh()
    return writer.sentence(writer.pick((NEGATIVE, POSITIVE)), writer.pick(DEPTHS))
