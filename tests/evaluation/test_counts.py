"""Entity, multi-label and count figures against seqeval, scikit-learn and plain resampling."""

import warnings

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality import counts as figures
from evaluation.quality.entities import Entity, entities, entity_counts, repair, scheme_of, split_tag
from evaluation.quality.multilabel import exact_rows, multilabel_counts

SCHEMES = {"iob2": seqeval.scheme.IOB2, "bioes": seqeval.scheme.IOBES}


def tags_of(scheme):
    prefixes = "BI" if scheme == "iob2" else "BIES"
    return st.sampled_from(["O", *(f"{p}-{t}" for p in prefixes for t in ("PER", "creative-work", "LOC"))])


def sentences(scheme):
    """Pairs of tag sequences of one length, most of them illegal somewhere."""
    pair = st.tuples(tags_of(scheme), tags_of(scheme))
    return st.lists(st.lists(pair, min_size=1, max_size=12), min_size=1, max_size=6)


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=scaled(300), deadline=None)
@given(data=st.data())
def test_entities_and_f1_equal_seqeval_strict(scheme, data):
    rows = data.draw(sentences(scheme))
    gold, predicted = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    for row in (*gold, *predicted):
        theirs = seqeval.scheme.Tokens(row, SCHEMES[scheme]).entities
        assert [(e.start, e.end, e.type) for e in entities(row, scheme)] == [(e.start, e.end, e.tag) for e in theirs]
    counts, _ = entity_counts(gold, predicted, scheme)
    total = counts.sum((0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns about sentences without entities
        theirs = [
            float(score(gold, predicted, mode="strict", scheme=SCHEMES[scheme], zero_division=0))
            for score in (
                seqeval.metrics.precision_score,
                seqeval.metrics.recall_score,
                seqeval.metrics.f1_score,
            )
        ]
    ours = [float(f(total)) for f in (figures.precision, figures.recall, figures.f1)]
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert float(figures.f1_micro(counts.sum(0))) == pytest.approx(theirs[2], abs=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=scaled(200), deadline=None)
@given(data=st.data())
def test_repair_makes_tags_legal_and_leaves_legal_ones_alone(scheme, data):
    row = data.draw(st.lists(tags_of(scheme), max_size=12))
    fixed = repair(row, scheme)
    assert repair(fixed, scheme) == fixed
    assert [t == "O" for t in fixed] == [t == "O" for t in row]
    assert [split_tag(t, scheme)[1] for t in fixed] == [split_tag(t, scheme)[1] for t in row]
    covered = {i for e in entities(fixed, scheme) for i in range(e.start, e.end)}
    assert covered == {i for i, tag in enumerate(row) if tag != "O"}
    if {i for e in entities(row, scheme) for i in range(e.start, e.end)} == covered:
        assert fixed == row


def test_repair_of_an_orphan():
    assert repair(["O", "I-PER", "I-PER", "I-LOC"]) == ["O", "B-PER", "I-PER", "B-LOC"]
    assert repair(["I-PER", "E-PER", "B-LOC"], "bioes") == ["B-PER", "E-PER", "S-LOC"]
    assert entities(["B", "I", "O"]) == [Entity(0, 2, "_")]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "iob2"),
        (["O", "I-creative-work", "B-creative-work"], "iob2"),
        (["O", "B-PER", "E-PER", "S-PER"], "bioes"),
        (["O"], None),
        (["NOUN", "VERB", "INTJ"], None),
        (["B", "I", "O"], None),
    ],
)
def test_the_scheme_is_known_from_the_tags(tags, scheme):
    assert scheme_of(tags) == scheme


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=30))
def test_multi_label_f1_equals_scikit_learn(rows):
    gold, predicted = np.array(rows) & 1, np.array(rows) >> 1
    total = multilabel_counts(gold, predicted).sum(0)
    for name, score in (("micro", figures.f1_micro), ("macro", figures.f1_macro)):
        expected = sklearn.metrics.f1_score(gold, predicted, average=name, zero_division=0)
        assert float(score(total)) == pytest.approx(expected, abs=1e-12)
    assert exact_rows(gold, predicted).mean() == pytest.approx(sklearn.metrics.accuracy_score(gold, predicted))


def test_the_bootstrap_of_counts_equals_resampling_rows():
    rng = np.random.default_rng(5)
    gold = rng.random((200, 4)) < 0.3
    counts = multilabel_counts(gold, gold ^ (rng.random((200, 4)) < 0.15))
    fast = figures.bootstrap_counts(counts, figures.f1_micro, resamples=2000)
    picks = [rng.integers(0, 200, 200) for _ in range(1500)]
    slow = np.quantile([figures.f1_micro(counts[i].sum(0)) for i in picks], [0.025, 0.975])
    assert [fast.low, fast.high] == pytest.approx(list(slow), abs=0.008)
    assert fast.value == float(figures.f1_micro(counts.sum(0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entities(["X-PER"]), "'X-PER' is not a tag of iob2: tags are O, or one of B, I, O and -TYPE"),
        (lambda: entities(["S-PER"]), "'S-PER' is not a tag of iob2"),
        (lambda: entities([""]), "'' is not a tag of iob2"),
        (lambda: entities(["INTJ"]), "'INTJ' is not a tag of iob2"),
        (lambda: entity_counts([["O"]], []), "1 gold sequences and 0 predicted ones"),
        (lambda: entity_counts([], []), "no rows to score"),
        (lambda: entity_counts([["O"], ["O", "O"]], [["O"], ["O"]]), "sequence 1 has 2 gold tags and 1 predicted ones"),
        (lambda: multilabel_counts([[1, 0]], [[1]]), r"gold has shape \(1, 2\) and predictions \(1, 1\)"),
        (lambda: multilabel_counts(np.zeros((0, 2)), np.zeros((0, 2))), "no rows to score"),
        (lambda: figures.bootstrap_counts(np.zeros((0, 3)), figures.f1), "no rows to resample"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
