"""Retrieval metrics and fidelity of vectors against their definitions, computed here one query at a time."""

import math

import numpy as np
import pytest
import scipy.stats

from evaluation.quality import retrieval
from evaluation.quality.draws import of_mean
from evaluation.quality.estimates import estimate_difference, estimate_metric
from evaluation.quality.retrieval import cosines, rank_metrics, search
from evaluation.representation.neighbours import neighbour_overlap, similarity_rank_correlation


def plain_metrics(scores: np.ndarray, relevant: dict[int, float]) -> dict[str, float]:
    """Of one query, from the similarity of every document: nDCG@10 and MRR@10 as trec_eval has them, recall."""
    ranking = sorted(range(len(scores)), key=lambda d: (-scores[d], d))
    gains = {d: g for d, g in relevant.items() if g > 0}
    dcg = sum(gains.get(d, 0) / math.log2(place + 2) for place, d in enumerate(ranking[:10]))
    best = sum(g / math.log2(place + 2) for place, g in enumerate(sorted(gains.values(), reverse=True)[:10]))
    first = next((1 / (place + 1) for place, d in enumerate(ranking[:10]) if d in gains), 0.0)
    found = {f"recall@{k}": len(gains.keys() & set(ranking[:k])) / len(gains) for k in (1, 10, 100)}
    return {"ndcg@10": dcg / best, "mrr@10": first, **found}


@pytest.fixture
def collection():
    """90 queries, 700 documents, and per query up to 30 graded documents, some of grade 0."""
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(700, 12)).astype(np.float32)
    queries = (documents[:90] + 1.5 * rng.normal(size=(90, 12))).astype(np.float32)
    relevant = []
    for query in range(90):
        picks = rng.choice(700, rng.integers(1, 30), replace=False)
        relevant.append({int(d): float(rng.integers(0, 4)) for d in picks} | {query: 2.0})
    return queries, documents, relevant


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_metrics_equal_their_definitions(collection, similarity):
    queries, documents, relevant = collection
    found, scores = search(queries, documents, 100, similarity=similarity)
    values = rank_metrics(found, relevant)
    exact = queries.astype(np.float64) @ documents.T.astype(np.float64)
    if similarity == "cosine":
        exact /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    for row in range(len(queries)):
        wanted = plain_metrics(exact[row], relevant[row])
        assert {name: v[row] for name, v in values.items()} == pytest.approx(wanted, abs=1e-9)
    np.testing.assert_allclose(scores, np.take_along_axis(exact, found, 1), rtol=1e-5, atol=1e-6)


def test_blocks_change_nothing_and_ties_go_to_the_first_row(monkeypatch):
    rng = np.random.default_rng(1)
    documents = np.repeat(rng.integers(-2, 3, size=(40, 4)), 3, axis=0).astype(np.float32)
    documents[5] = 0
    queries = rng.integers(-2, 3, size=(20, 4)).astype(np.float32)
    whole = search(queries, documents, 9, similarity="dot")
    scores = queries @ documents.T
    wanted = [sorted(range(120), key=lambda d, q=q: (-scores[q, d], d))[:9] for q in range(20)]
    np.testing.assert_array_equal(whole[0], wanted)
    np.testing.assert_array_equal(whole[1], np.take_along_axis(scores, whole[0], 1))
    monkeypatch.setattr(retrieval, "DOCUMENTS", 7)
    monkeypatch.setattr(retrieval, "QUERIES", 3)
    for a, b in zip(whole, search(queries, documents, 9, similarity="dot"), strict=True):
        np.testing.assert_array_equal(a, b)


class Counted:
    """Documents that are read from nowhere, and how many rows of them were held at once."""

    shape = (100_000, 4)
    most = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        numbers = np.arange(rows.start, min(rows.stop, self.shape[0]))
        Counted.most = max(Counted.most, len(numbers))
        return np.stack([np.cos(numbers), np.sin(numbers), numbers % 7, numbers % 11], axis=1)


def test_search_reads_documents_block_by_block():
    wanted = Counted()[slice(0, 100_000)]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    Counted.most = 0
    found, scores = search(wanted[[3, 99_999]], Counted(), 1)
    assert Counted.most <= retrieval.DOCUMENTS
    assert scores == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(wanted[found[:, 0]], wanted[[3, 99_999]], atol=1e-3)


def test_neighbours_and_similarities_equal_their_definitions():
    rng = np.random.default_rng(2)
    theirs = rng.normal(size=(60, 8))
    ours = np.concatenate([theirs + 0.5 * rng.normal(size=(60, 8)), rng.normal(size=(60, 3))], axis=1)
    chosen = np.array([0, 17, 59])
    overlap, correlation = (f(ours, theirs, chosen) for f in (neighbour_overlap, similarity_rank_correlation))
    for place, row in enumerate(chosen):
        cosine = [x @ x[row] / np.linalg.norm(x, axis=1) / np.linalg.norm(x[row]) for x in (ours, theirs)]
        others = np.delete(np.arange(60), row)
        near = [set(others[np.argsort(-c[others])[:10]]) for c in cosine]
        assert overlap[place] == pytest.approx(len(near[0] & near[1]) / 10, abs=1e-12)
        wanted = scipy.stats.spearmanr(cosine[0][others], cosine[1][others])[0]
        assert correlation[place] == pytest.approx(wanted, abs=1e-9)
    assert neighbour_overlap(theirs, 3 * theirs).tolist() == [1.0] * 60
    assert similarity_rank_correlation(theirs, theirs) == pytest.approx(np.ones(60), abs=1e-12)


def test_cosines():
    a = np.array([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0]])
    assert cosines(a, np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])) == pytest.approx([0, 1, 0])
    with pytest.raises(ValueError, match="have no cosines"):
        cosines(a, a[:, :1])


def test_values_of_queries_have_intervals_and_paired_differences(collection):
    queries, documents, relevant = collection
    noisy = queries + np.random.default_rng(3).normal(size=queries.shape).astype(np.float32)
    good, bad = (rank_metrics(search(q, documents, 100)[0], relevant)["ndcg@10"] for q in (queries, noisy))
    whole = estimate_metric(90, of_mean(good))
    assert whole.value == pytest.approx(good.mean())
    assert whole.low < whole.value < whole.high
    apart = estimate_difference(90, of_mean(good), of_mean(bad))
    assert apart.value == pytest.approx(good.mean() - bad.mean())
    assert apart.low > 0


def test_bad_input(collection):
    queries, documents, relevant = collection
    with pytest.raises(ValueError, match="query 2 has no relevant document"):
        rank_metrics(search(queries, documents, 10)[0], [*relevant[:2], {4: 0.0}, *relevant[3:]])
    with pytest.raises(ValueError, match="701 most similar of 700 documents"):
        search(queries, documents, 701)
    with pytest.raises(ValueError, match="12 dimensions and documents 11"):
        search(queries, documents[:, :11], 1)
    damaged = documents.copy()
    damaged[600, 1] = np.nan
    with pytest.raises(ValueError, match="documents hold values that are not finite"):
        search(queries, damaged, 1)
    with pytest.raises(ValueError, match="three texts"):
        similarity_rank_correlation(documents[:2], documents[:2])
    with pytest.raises(ValueError, match="10 most similar of 10"):
        neighbour_overlap(documents[:10], documents[:10])


def test_equal_to_trec_eval(collection):
    """pytrec_eval, where it is installed: BEIR reports what it computes."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    queries, documents, relevant = collection
    found, scores = search(queries, documents, 100)
    ours = rank_metrics(found, relevant)
    judged = {str(q): {f"{d:04d}": int(g) for d, g in graded.items()} for q, graded in enumerate(relevant)}
    run = {str(q): {f"{d:04d}": float(s) for d, s in zip(found[q], scores[q], strict=True)} for q in range(len(found))}
    names = {"ndcg@10": "ndcg_cut_10", **{f"recall@{k}": f"recall_{k}" for k in (1, 10, 100)}}
    theirs = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.1,10,100"}).evaluate(run)
    for name, key in names.items():
        assert ours[name] == pytest.approx([theirs[str(q)][key] for q in range(len(found))], abs=1e-9)
