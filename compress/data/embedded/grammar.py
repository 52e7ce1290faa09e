"""The grammar at work: from a sign and a depth to a sentence whose meaning is known.

A `Writer` draws every choice from one random stream by `random.random()` alone, the one call that Python promises to
keep the same from version to version. Nothing here depends on the order of a set or on a hash of the process.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from compress.data.embedded import frames, lexicon
from compress.data.embedded.lexicon import Kind, Words

Thing = tuple[tuple[str, ...], Kind]
POSITIVE, NEGATIVE = 1, -1
_OPENING, _CLOSING = {"“"}, {",", ".", ";", "!", "?", "”"}
_AFTER_COMMA = _CLOSING - {"”"}  # before these a comma is dropped


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the text leaves standing about one thing.

    sign: +1 or -1; strength: 0.5 (damped, or a boost denied), 1 or 2 (boosted).  settled: False when a disagreement
    turned the sentence around without saying whether this part of it stands.
    """

    noun: tuple[str, ...]
    kind: Kind
    sign: int
    strength: float
    opinion: tuple[str, ...]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """Words `start` to `end` (exclusive) are an `aspect` (what is judged) or an `opinion` (the judging words)."""

    start: int
    end: int
    label: str


@dataclass(slots=True)
class Clause:
    """Words, the spans marked in them, and what they mean; `judgements[0]` is the one that decides."""

    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)

    @property
    def focus(self) -> Judgement:
        return self.judgements[0]

    def say(self, words: Sequence[str], label: str | None = None) -> None:
        if label is not None:
            self.spans.append(Span(len(self.words), len(self.words) + len(words), label))
        self.words.extend(words)

    def embed(self, inner: Clause) -> None:
        """The words and spans of `inner` at the end of this clause (its meaning is the caller's to settle)."""
        offset = len(self.words)
        self.words.extend(inner.words)
        self.spans.extend(Span(s.start + offset, s.end + offset, s.label) for s in inner.spans)


def format_words(words: Sequence[str]) -> tuple[str, list[int]]:
    """Words as a text, `The soup was good, but "it was cold," said Tom.`, and where in it each word starts."""
    text, starts, glue = "", [], True
    for word in words:
        if word not in _CLOSING and not glue:
            text += " "
        starts.append(len(text))
        text += plain_quotes(word)
        glue = word in _OPENING
    return text, starts


def text_of(words: Sequence[str]) -> str:
    """The text of `format_words`, without the starts: most texts are written to be judged and dropped."""
    parts, glue = [], True
    for word in words:
        parts.append(word if glue or word in _CLOSING else " " + word)
        glue = word in _OPENING
    return "".join(parts).replace("“", '"').replace("”", '"')


def plain_quotes(word: str) -> str:
    return '"' if word in "“”" else word


class Writer:
    """Writes sentences about one setting. With `held_out`, now and then in words that no train split contains."""

    def __init__(self, stream: random.Random, held_out: bool, rare_rate: float = 0.02) -> None:
        self._random = stream.random
        self._rare_rate = rare_rate if held_out else 0.0
        self._used: list[tuple[str, ...]] = []
        self._quoting = False
        self.passing: Thing | None = None  # named in this sentence without being judged
        self.setting = lexicon.SETTINGS[0]
        self.fresh()

    # --- choices -------------------------------------------------------------------------------------------------

    def fresh(self, setting: int | None = None) -> None:
        """Forget what was talked about and go to a setting, drawn when not given."""
        self._used.clear()
        self.passing = None
        self.setting = self.pick(lexicon.SETTINGS) if setting is None else lexicon.SETTINGS[setting]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, options: Sequence):
        return options[int(self._random() * len(options))]

    def word(self, words: Words) -> tuple[str, ...]:
        """One expression: earlier ones are likelier, as words are in life; held-out ones rare where allowed."""
        entries, common = words.entries, words.common
        if self._rare_rate and common < len(entries) and self._random() < self._rare_rate:
            return entries[common + int(self._random() * (len(entries) - common))]
        return entries[int(self._random() ** 1.4 * common)]

    def unused(self, words: Words) -> tuple[str, ...]:
        """An expression that this text has not used yet."""
        chosen = self.word(words)
        while chosen in self._used:
            chosen = self.word(words)
        self._used.append(chosen)
        return chosen

    def thing(self) -> Thing:
        """Something to judge that belongs to the setting."""
        kind = self.pick(self.setting[1])
        return self.unused(kind.nouns), kind

    def person(self) -> tuple[str, ...]:
        return self.unused(lexicon.NAMES if self.chance(0.6) else lexicon.CRITICS)

    def adjective(self, kind: Kind, sign: int) -> tuple[str, ...]:
        if self.chance(0.4):
            return self.word(lexicon.ANY_POSITIVE if sign > 0 else lexicon.ANY_NEGATIVE)
        return self.word(kind.adjectives(sign))

    # --- judgements without nesting ------------------------------------------------------------------------------

    def plain(self, sign: int, thing: Thing | None = None) -> Clause:
        return self._judge(self.pick(_PLAIN), sign, False, thing)

    def negated(self, sign: int, thing: Thing | None = None) -> Clause:
        return self._judge(self.pick(_NEGATED), sign, True, thing)

    def nominal(self, sign: int) -> Clause:
        """`the bland soup`."""
        noun, kind = self.thing()
        clause, adjective = Clause(), self.adjective(kind, sign)
        clause.say(("the",))
        clause.say(adjective if len(adjective) == 1 else (adjective := self.word(kind.adjectives(sign))), "opinion")
        clause.say(noun, "aspect")
        clause.judgements.append(Judgement(noun, kind, sign, 1.0, adjective))
        return clause

    def _judge(self, frame: tuple[str, ...], sign: int, turned: bool, thing: Thing | None) -> Clause:
        clause = Clause()
        noun, kind = thing or self.thing()
        slot = _opinion_slot(frame)
        opinion = self._opinion(slot, kind, -sign if slot.endswith("->") else sign)
        strength = 1.0
        for part in frame:
            if part == "<it>":
                clause.say(("the",))
                clause.say(noun, "aspect")
                if self.chance(0.08):
                    clause.say((",", *self.word(lexicon.ASIDES), ","))
            elif part == "<deg>":
                strength = self._degree(clause) if len(opinion) == 1 else 1.0
            elif part == "<soft>":
                if self.chance(0.6):
                    clause.say(self.word(lexicon.SOFTENERS))
            elif part == "<who>":
                clause.say(self.person())
            elif part == slot:
                clause.say(opinion, "opinion")
            else:
                clause.words.append(part)
        clause.judgements.append(Judgement(noun, kind, sign, 0.5 if turned else strength, opinion))
        return clause

    def _degree(self, clause: Clause) -> float:
        draw = self._random()
        if draw < 0.35:
            clause.say(self.word(lexicon.BOOSTS))
            return 2.0
        if draw < 0.5:
            clause.say(self.word(lexicon.DAMPERS))
            return 0.5
        return 1.0

    def _opinion(self, slot: str, kind: Kind, sign: int) -> tuple[str, ...]:
        name = slot.strip("<->")
        if name == "adj":
            return self.adjective(kind, sign)
        good, bad = _VERBS[name.removesuffix("d")]
        past, base = self.pick(good if sign > 0 else bad)
        return (past if name.endswith("d") else base,)

    # --- composition ---------------------------------------------------------------------------------------------

    def clause(self, sign: int, depth: int, closed: bool = False) -> Clause:
        """A clause that comes down on `sign`, composed of `depth` levels."""
        if depth <= 0:
            return self.plain(sign)
        if depth == 1 and self.chance(0.4):
            return self.negated(sign)
        kinds = _CLOSED_KINDS if closed else _OPEN_KINDS
        draw, index = self._random(), 0
        while draw >= kinds[index][0]:
            index += 1
        _, options, turned = kinds[index]
        frame = self.pick(options)
        while self._quoting and frame[0] == "“":
            frame = self.pick(options)
        return self._compose(frame, sign, depth, turned)

    def _compose(self, frame: tuple[str, ...], sign: int, depth: int, turned: bool) -> Clause:
        whole = Clause()
        deep = self.pick([part for part in frame if part in _NESTED])
        for part in frame:
            if part in _NESTED:
                level = depth - 1 if part == deep else min(depth - 1, int(self.chance(0.2)))
                self._quoting, outer = self._quoting or frame[0] == "“", self._quoting
                inner = self.clause(sign if part[-1] == "+" else -sign, level, closed=part[0] == "c")
                self._quoting = outer
                self._take(whole, inner, turned, first=part[0] == ">")
            elif part in ("a+", "n-"):
                self._take(whole, self.plain(sign) if part == "a+" else self.nominal(-sign), turned, first=False)
            elif part in ("<who>", "<who2>"):
                whole.say(self.person())
            elif part[0] == "<":
                whole.say(self.word(_SPEECH[part]))
            else:
                whole.words.append(part)
        return whole

    @staticmethod
    def _take(whole: Clause, inner: Clause, turned: bool, first: bool) -> None:
        """Take `inner` into `whole`; of a claim turned around the focus stands reversed, the rest is open."""
        whole.embed(inner)
        judgements = inner.judgements
        if turned:
            rest = [replace(j, settled=False) for j in judgements[1:]]
            judgements = [replace(judgements[0], sign=-judgements[0].sign, strength=0.5), *rest]
        whole.judgements[:] = [*judgements, *whole.judgements] if first else [*whole.judgements, *judgements]

    def sentence(self, sign: int, depth: int) -> Clause:
        """A finished sentence: an opening or a closing phrase now and then, a capital, a full stop."""
        opening, draw = Clause(), self._random()
        if draw < 0.25:
            opening.say((*self.word(lexicon.OPENERS), ","))
        elif draw < 0.35:
            self.passing = self.thing()
            opening.say((*self.word(lexicon.PASSING), "the", *self.passing[0], ","))
        return self.finished(opening, self.clause(sign, depth), closing=self.chance(0.25))

    def finished(self, opening: Clause, clause: Clause, closing: bool = False) -> Clause:
        """`opening` and `clause` as one sentence that means what `clause` does."""
        opening.embed(clause)
        opening.judgements = clause.judgements
        if closing:
            opening.say(self.word(lexicon.CLOSERS))
        opening.say((".",))
        return _tidied(opening)


def _tidied(clause: Clause) -> Clause:
    """The clause without doubled punctuation (an aside that ends where its sentence does) and with a capital."""
    words, spans = list(clause.words), clause.spans
    doubled = [i for i, word in enumerate(words) if word == "," and words[i + 1] in _AFTER_COMMA]
    if doubled:
        keep = [i for i in range(len(words)) if i not in doubled]
        place = {old: new for new, old in enumerate(keep)}
        spans = [Span(place[s.start], place[s.end - 1] + 1, s.label) for s in spans]
        words = [words[i] for i in keep]
    first = 1 if words[0] in _OPENING else 0
    words[first] = words[first][0].upper() + words[first][1:]
    return Clause(words, spans, clause.judgements)


@cache
def _opinion_slot(frame: tuple[str, ...]) -> str:
    """The part of a frame that an opinion word replaces."""
    return next(part for part in frame if part.startswith(_OPINION_SLOTS))


def _split(lines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split()) for line in lines)


_PLAIN, _NEGATED = _split(frames.PLAIN), _split(frames.NEGATED)
_REPORT_TURNED, _REPORT_KEPT = _split(frames.REPORT_TURNED), _split(frames.REPORT_KEPT)
_CLAIM_TURNED, _CLAIM_KEPT = _split(frames.CLAIM_TURNED), _split(frames.CLAIM_KEPT)
# (cumulative share, frames, does the frame turn its clause around)
_OPEN_KINDS = (
    (0.40, _split(frames.CONTRAST), False),
    (0.62, _REPORT_TURNED, True),
    (0.74, _CLAIM_TURNED, True),
    (0.84, _REPORT_KEPT, False),
    (0.91, _CLAIM_KEPT, False),
    (1.00, _split(frames.ACCORD), False),
)
_CLOSED_KINDS = ((0.6, _CLAIM_TURNED, True), (1.0, _CLAIM_KEPT, False))
_NESTED = frozenset((">+", "+", "-", "c+", "c-"))
_OPINION_SLOTS = ("<adj", "<please", "<like")
_VERBS = {"please": (lexicon.PLEASED, lexicon.ANNOYED), "like": (lexicon.LIKED, lexicon.HATED)}
_SPEECH = {
    "<said>": lexicon.SAID,
    "<agreed>": lexicon.AGREED,
    "<disagreed>": lexicon.DISAGREED,
    "<disagree>": lexicon.DISAGREE,
    "<denied>": lexicon.DENIED,
}
