"""Answers against the rules of the official scripts, written down here as cases and as an independent computation."""

import re
import string
from collections import Counter

import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.answers import normalize, rules_of, score_answers, segments

WORDS = st.lists(st.sampled_from(["The", "a", "cat", "Cat's", "sat", ",", "mat.", "1990", "—", "an"]), max_size=6)


def plainly(text):
    """SQuAD's four steps in their order: lower case, punctuation, articles, white space."""
    lower = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", lower).split())


@settings(max_examples=scaled(200), deadline=None)
@given(WORDS.map(" ".join), st.lists(WORDS.map(" ".join), min_size=1, max_size=3))
def test_scores_equal_a_plain_computation(answer, accepted):
    exact, f1 = 0.0, 0.0
    for gold in accepted:
        ours, theirs = plainly(answer).split(), plainly(gold).split()
        same = sum(min(n, Counter(theirs)[w]) for w, n in Counter(ours).items())
        exact = max(exact, float(ours == theirs))
        if same:
            p, r = same / len(ours), same / len(theirs)
            f1 = max(f1, 2 * p * r / (p + r))
    scores = score_answers([answer], [accepted])
    assert scores.exact[0] == exact
    assert scores.f1[0] == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "accepted", "exact", "f1"),
    [
        ("The  Cat!", ["cat"], 1.0, 1.0),
        ("cat sat", ["the cat", "cat sat on"], 0.0, 0.8),
        ("dog", ["cat"], 0.0, 0.0),
        ("cat cat", ["cat"], 0.0, 2 / 3),
        ("“cat”", ["cat"], 0.0, 0.0),  # only ASCII punctuation is dropped, as in the script
    ],
)
def test_cases_of_squad(answer, accepted, exact, f1):
    scores = score_answers([answer], [accepted])
    assert (scores.exact[0], scores.f1[0]) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("answer", "accepted", "rules", "exact", "f1"),
    [
        ("", [], "squad_v2", 1.0, 1.0),
        ("cat", [], "squad_v2", 0.0, 0.0),
        ("", ["cat"], "squad_v2", 0.0, 0.0),
        ("the", [], "squad_v2", 1.0, 1.0),  # nothing is left of it
        ("", ["The!"], "squad_v2", 1.0, 1.0),  # nor of the gold answer
        ("The cat", ["cat"], "squad_v2", 1.0, 1.0),
        ("the", ["a"], "squad", 1.0, 0.0),  # version 1.1 has no case for empty sides
    ],
)
def test_no_answer_by_version_two(answer, accepted, rules, exact, f1):
    scores = score_answers([answer], [accepted], rules)
    assert (scores.exact[0], scores.f1[0]) == (exact, f1)


@pytest.mark.parametrize(
    ("answer", "accepted", "exact", "f1"),
    [
        ("光荣和ω-force", ["光荣和ω-force"], 1.0, 1.0),
        ("“村雨城”。", ["村雨城"], 1.0, 1.0),  # marks do not count
        ("任天堂村雨城", ["村雨城", "谜之村雨城"], 0.0, 2 * 3 / 9),
        ("村城", ["村雨城"], 0.0, 2 * 1 / 5),  # the longest common run, not the common characters
        ("1990年", ["1990年", "90年"], 1.0, 1.0),
        ("北京", ["上海"], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        ("北京", [], 0.0, 0.0),
    ],
)
def test_cases_of_cmrc(answer, accepted, exact, f1):
    scores = score_answers([answer], [accepted], "cmrc2018")
    assert (scores.exact[0], scores.f1[0]) == (exact, pytest.approx(f1))


def test_pieces_and_normal_form():
    assert segments("于1990年，加入 Koei Tecmo（光荣）") == [
        "于",
        "1990",
        "年",
        "加",
        "入",
        "koei",
        "tecmo",
        "光",
        "荣",
    ]
    assert segments("3.5米") == ["3", ".", "5", "米"]
    assert normalize("The Answer, a long-term one.") == "answer longterm one"


@pytest.mark.parametrize(
    ("gold", "rules"),
    [
        ([["cat"], ["dog", "a dog"]], "squad"),
        ([["cat"], []], "squad_v2"),
        ([["村雨城"], ["1990年"], ["ω-force"]], "cmrc2018"),
        ([["村雨城"], []], "cmrc2018"),
        ([[], []], "squad_v2"),
    ],
)
def test_the_rules_follow_from_the_gold_answers(gold, rules):
    assert rules_of(gold) == rules


@pytest.mark.parametrize(
    ("predicted", "gold", "message"),
    [
        (["a"], [["a"], ["b"]], "1 answers for 2 questions"),
        ([], [], "no rows to score"),
        (["a", "b"], [["a"], []], "question 1 has no gold answer: score such data by the rules of squad_v2"),
    ],
)
def test_bad_input_is_named(predicted, gold, message):
    with pytest.raises(ValueError, match=message):
        score_answers(predicted, gold)
