"""Words in their place: which are aspects and opinions, and which answer a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.data.embedded import lexicon
from compress.data.embedded.grammar import NEGATIVE, POSITIVE, Clause, Span, Writer, format_words, plain_quotes
from compress.data.embedded.opinions import DEPTHS, draw_fitting_clause
from compress.data.embedded.splits import Row, collect, stream

TAGS = ("O", "B-aspect", "I-aspect", "B-opinion", "I-opinion")
TAG_SIZES = {"test": 1500, "validation": 750, "train": 8000}
QA_SIZES = {"test": 1000, "validation": 500, "train": 8000}


def tags(seed: int, version: str) -> dict[str, list[Row]]:
    """`tokens` and `labels` (IOB2): what is judged and the words that judge; things named in passing are O."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in TAG_SIZES.items():
        writer = Writer(stream(version, "tags", seed, split), held_out=split != "train")
        splits[split] = collect(size, lambda w=writer, e=split != "train": _tagged(w, e), seen)
    return {split: splits[split] for split in ("train", "validation", "test")}


def _tagged(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    def sentence() -> Clause:
        writer.fresh()
        return writer.sentence(writer.pick((NEGATIVE, POSITIVE)), writer.pick(DEPTHS))

    clause = draw_fitting_clause(writer, evaluation, sentence)
    tokens = [plain_quotes(word) for word in clause.words]
    return {"tokens": tokens, "labels": iob2(len(tokens), clause.spans)}, [" ".join(tokens)]


def iob2(length: int, spans: Sequence[Span]) -> list[str]:
    """One tag a word."""
    labels = ["O"] * length
    for span in spans:
        labels[span.start : span.end] = [f"I-{span.label}"] * (span.end - span.start)
        labels[span.start] = f"B-{span.label}"
    return labels


# --- questions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """Somebody's view of one thing: positions are word spans in the context."""

    who: Span
    aspect: Span
    opinion: Span
    sign: int
    name: tuple[str, ...]
    noun: tuple[str, ...]


def questions(seed: int, version: str) -> dict[str, list[Row]]:
    """`context`, `question`, `answers` and `answer_starts` (character offsets into the context)."""
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in QA_SIZES.items():
        writer = Writer(stream(version, "qa", seed, split), held_out=split != "train")
        splits[split] = collect(size, lambda w=writer, e=split != "train": _asked(w, e), seen)
    return {split: splits[split] for split in ("train", "validation", "test")}


def _asked(writer: Writer, evaluation: bool) -> tuple[Row, list[str]]:
    facts: list[Fact] = []

    def context() -> Clause:
        writer.fresh()
        facts.clear()
        whole = Clause()
        for _ in range(writer.pick((1, 2, 2, 3))):
            _witness(writer, whole, facts)
        return whole

    clause = draw_fitting_clause(writer, evaluation, context)
    text, starts = format_words(clause.words)
    fact = writer.pick(facts)
    question, span = _question(writer, fact, facts)
    start, last = starts[span.start], span.end - 1
    answer = text[start : starts[last] + len(clause.words[last])]
    return {"context": text, "question": question, "answers": [answer], "answer_starts": [start]}, [text]


def _question(writer: Writer, fact: Fact, facts: Sequence[Fact]) -> tuple[str, Span]:
    """A question about `fact` that has this one answer in the context."""
    noun, name = " ".join(fact.noun), " ".join(fact.name)
    kinds = [
        (f"What did {name} {'like' if fact.sign > 0 else 'dislike'}?", fact.aspect),
        (f"What was said about the {noun}?", fact.opinion),
    ]
    if sum(f.noun == fact.noun and f.sign == fact.sign for f in facts) == 1:  # else two people are of one opinion
        kinds.append((f"Who had a {'good' if fact.sign > 0 else 'bad'} opinion of the {noun}?", fact.who))
    return writer.pick(kinds)


def _witness(writer: Writer, whole: Clause, facts: list[Fact]) -> None:
    """One more sentence in `whole`, and what it tells about who holds which opinion."""
    sign, turned = writer.pick((NEGATIVE, POSITIVE)), writer.chance(0.4)
    (noun, kind), name = writer.thing(), writer.person()
    first = len(whole.words)
    who = _say(whole, name)
    whole.say(("did", "not", "find") if turned else ("found",))
    whole.say(("the",))
    aspect = _say(whole, noun)
    if not turned and writer.chance(0.4):
        whole.say(writer.word(lexicon.BOOSTS))
    opinion = _say(whole, writer.adjective(kind, -sign if turned else sign))
    facts.append(Fact(who, aspect, opinion, sign, name, noun))
    draw = writer.chance(0.5), writer.chance(0.5)
    if draw[0]:
        other = writer.person()
        whole.say((",", "and" if draw[1] else "but"))
        holder = _say(whole, other)
        whole.say(writer.word(lexicon.AGREED if draw[1] else lexicon.DISAGREED))
        facts.append(Fact(holder, aspect, opinion, sign if draw[1] else -sign, other, noun))
    whole.say((".",))
    word = whole.words[first]
    whole.words[first] = word[0].upper() + word[1:]


def _say(clause: Clause, words: tuple[str, ...]) -> Span:
    clause.say(words)
    return Span(len(clause.words) - len(words), len(clause.words), "")
