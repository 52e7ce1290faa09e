"""What sentences mean, checked against a reader that knows the rules but not the generator."""

from __future__ import annotations

import pytest

from compress.data.embedded import lexicon
from compress.data.embedded.grammar import NEGATIVE, POSITIVE, Clause, Writer, format_words, text_of
from compress.data.embedded.splits import stream


def writer(seed: int = 0) -> Writer:
    return Writer(stream("test", seed), held_out=True)


def tone_of(words: tuple[str, ...]) -> int:
    """+1 for a praising expression, -1 for a complaining one."""
    praise, blame = [lexicon.ANY_POSITIVE], [lexicon.ANY_NEGATIVE]
    for _, kinds in lexicon.SETTINGS:
        praise += [k.positive for k in kinds]
        blame += [k.negative for k in kinds]
    good = {e for group in praise for e in group} | {(v,) for verb in (*lexicon.PLEASED, *lexicon.LIKED) for v in verb}
    bad = {e for group in blame for e in group} | {(v,) for verb in (*lexicon.ANNOYED, *lexicon.HATED) for v in verb}
    assert (words in good) != (words in bad), words
    return POSITIVE if words in good else NEGATIVE


TURNING = ("not", "never", "nothing", "nobody", "hardly", "anything but", "far from")


@pytest.mark.parametrize("sign", [NEGATIVE, POSITIVE])
def test_a_plain_judgement_says_what_its_word_says(sign):
    w = writer()
    for _ in range(300):
        w.fresh()
        assert tone_of(w.plain(sign).focus.opinion) == sign


@pytest.mark.parametrize("sign", [NEGATIVE, POSITIVE])
def test_a_negation_turns_its_word_around(sign):
    w = writer()
    for _ in range(300):
        w.fresh()
        clause = w.negated(sign)
        text = text_of(clause.words)
        assert any(mark in text for mark in TURNING), text
        assert tone_of(clause.focus.opinion) == -sign
        assert clause.focus.sign == sign


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_clause_comes_down_on_the_asked_side(depth):
    w = writer(depth)
    for _ in range(500):
        w.fresh()
        sign = w.pick((NEGATIVE, POSITIVE))
        clause = w.sentence(sign, depth)
        assert clause.focus.sign == sign
        assert clause.focus.settled
        nouns = [j.noun for j in clause.judgements]
        assert len(set(nouns)) == len(nouns)


def leaf(clause: Clause) -> int:
    """The face value of the only judgement of a clause."""
    turns = sum(f" {mark} " in f" {text_of(clause.words).lower()} " for mark in TURNING)
    return tone_of(clause.focus.opinion) * (-1) ** min(turns, 1)


def test_a_chain_of_claims_is_the_product_of_its_turns():
    """`X denied that Y was wrong to say that Z was right to say that the soup was good`."""
    w, seen = writer(7), set()
    denials = [" ".join(d) for d in lexicon.DENIED]
    for _ in range(500):
        w.fresh()
        sign = w.pick((NEGATIVE, POSITIVE))
        clause = w.clause(sign, 3, closed=True)
        head = text_of(clause.words).replace(" all that ", " really ")
        turns = sum(head.count(f" {d} that ") for d in denials)
        turns += head.count(" wrong to say that ") + head.count("simply not true that ")
        rest = Clause(head.rsplit(" that ", 1)[1].split(), [], clause.judgements)
        assert len(clause.judgements) == 1
        assert leaf(rest) * (-1) ** turns == sign, head
        seen.add(turns)
    assert {0, 1, 2} <= seen


def test_of_two_clauses_the_rule_of_the_connective_decides():
    w, seen = writer(9), 0
    for _ in range(3000):
        w.fresh()
        sign = w.pick((NEGATIVE, POSITIVE))
        clause = w.clause(sign, 1)
        if len(clause.judgements) != 2 or not all(j.settled for j in clause.judgements):
            continue
        text = text_of(clause.words)
        at = [text.index("the " + " ".join(j.noun)) if "despite" not in text else 0 for j in clause.judgements]
        if text.startswith(("although", "even though", "while")) or ", but " in text or ", yet " in text:
            assert at[0] > at[1], text  # the deciding judgement comes second
        elif ", although" in text or ", even " in text:
            assert at[0] < at[1], text
        else:
            continue
        seen += 1
        assert clause.judgements[0].sign == sign == -clause.judgements[1].sign
    assert seen > 200


def test_disagreement_turns_the_focus_and_opens_the_rest():
    w = writer(11)
    for _ in range(300):
        w.fresh()
        inner = w.clause(POSITIVE, 1)
        whole = Clause()
        w._take(whole, inner, True, first=False)
        assert whole.judgements[0].sign == NEGATIVE
        assert not any(j.settled for j in whole.judgements[1:])


def test_spans_lie_on_their_words():
    w = writer(13)
    for _ in range(500):
        w.fresh()
        clause = w.sentence(POSITIVE, w.pick((0, 1, 2, 3)))
        aspects = {tuple(clause.words[s.start : s.end]) for s in clause.spans if s.label == "aspect"}
        opinions = {tuple(clause.words[s.start : s.end]) for s in clause.spans if s.label == "opinion"}
        assert aspects == {j.noun for j in clause.judgements}
        assert opinions == {j.opinion for j in clause.judgements}


def test_written_text_and_where_its_words_start():
    words = ["“", "We", "loved", "it", ",", "”", "said", "Tom", "."]
    text, starts = format_words(words)
    assert text == '"We loved it," said Tom.'
    assert [text[s] for s in starts] == ['"', "W", "l", "i", ",", '"', "s", "T", "."]
    assert text_of(words) == text


def test_the_text_alone_is_the_text_with_starts():
    w = writer(14)
    for _ in range(300):
        w.fresh()
        words = w.sentence(POSITIVE, w.pick((0, 1, 2, 3))).words
        assert text_of(words) == format_words(words)[0]
