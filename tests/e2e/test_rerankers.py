"""Rerankers through the commands: evaluated on candidates, cut, quantized, trained, distilled, exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cross_encoders import as_cross_encoder, loaded_scores
from e2e_toy import BAD, GOOD, SPEAKERS, THINGS, Cli, write_rows
from example_counts import thorough_but
from sentence_folders import as_sentence_transformers

from compress.api.model import load
from compress.errors import UserError, printable
from compress.fit.cost import block_table
from compress.modelfolder.folder import inspect, load_model, save_model
from compress.predict.predictor import Predictor
from compress.predict.service import Service

SPLITS = {"train": 12, "validation": 6, "test": 8}
PAIRS = [("the film was good", "she said the film was good"), ("dull", "he said the plot was not dull " * 9)]
DATA = ("--data", "ranked", "--threads", "1")


def rows_of(count: int, shift: int) -> list[dict[str, object]]:
    """Queries of a thing and a word, each with six documents, of which those about both are relevant."""
    found = []
    for number in range(shift, shift + count):
        thing, word = THINGS[number % len(THINGS)], (GOOD + BAD)[number // len(THINGS) % 8]
        others = [THINGS[(number + step) % len(THINGS)] for step in (0, 0, 1, 2, 3, 4)]
        for place, other in enumerate(others):
            speaker = SPEAKERS[(number + place) % len(SPEAKERS)]
            text = f"{speaker} said the {other} was {word}"
            found.append({"query": f"the {thing} was {word}", "document": text, "label": int(other == thing)})
    return found


@pytest.fixture
def mine(own_model: Path) -> Path:
    """`mine`, a reranker of 6 layers as sentence-transformers saved them before version 6, and pairs in `ranked`."""
    start = 0
    for split, count in SPLITS.items():
        write_rows(Path("ranked") / f"{split}.jsonl", rows_of(count, start))
        start += count
    return as_cross_encoder(own_model)


def figures(done: object, place: int = -1) -> dict[str, float]:
    return json.loads(done.out)["models"][place]["values"]  # type: ignore[attr-defined]


def result(done: object) -> Path:
    assert done.code == 0, done.err  # type: ignore[attr-defined]
    (made,) = (line.split()[1] for line in done.out.splitlines() if line.startswith("model "))  # type: ignore[attr-defined]
    return Path(made)


def check_scores(folder: Path) -> list[float]:
    """The folder's scores, those that sentence-transformers computes with it where that is installed."""
    texts, pairs = zip(*PAIRS, strict=True)
    found = [answer.score for answer in Predictor(folder, runtime="torch").predict(texts, pairs)]
    np.testing.assert_allclose(found, loaded_scores(folder, PAIRS), atol=1e-5)
    return found


# --- evaluate and predict -----------------------------------------------------------------------------------------


LAYOUTS = [("old", "sigmoid"), ("old", "identity"), ("new", "sigmoid"), ("new", "identity")]


@pytest.mark.parametrize(("layout", "activation"), thorough_but([LAYOUTS[0], LAYOUTS[3]], LAYOUTS))
def test_folders_of_sentence_transformers_are_rerankers(
    mine: Path, compress: Cli, layout: str, activation: str
) -> None:
    folder = as_cross_encoder(mine, layout=layout, activation=activation)
    info = inspect(folder)
    assert (info.meta.task, info.heads["task"].problem) == ("reranking", "ranking")
    scores = check_scores(folder)
    assert all(0 <= score <= 1 for score in scores) or activation == "identity"
    done = compress("predict", folder, PAIRS[0][0], "--pair", PAIRS[0][1], "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["score"] == pytest.approx(scores[0], abs=1e-6)
    done = compress("evaluate", folder, *DATA, "--json")
    assert done.code == 0, done.err
    assert {"quality/ndcg_at_10", "quality/mrr_at_10_low"} <= figures(done).keys()
    assert json.loads(done.out)["models"][0]["context"]["rows"] == str(SPLITS["test"])


RANK = ("predict", "mine", "--query", "the film was good", "--threads", "1")


def test_documents_are_ranked_for_a_query(mine: Path, compress: Cli, tmp_path: Path) -> None:
    documents = [pair for _, pair in PAIRS] + ["she said the film was good", "the plot"]
    scores = [answer.score for answer in Predictor(mine).predict([RANK[3]] * 4, documents)]
    order = sorted(range(4), key=lambda i: -scores[i])
    assert order.index(0) + 1 == order.index(2), "the same document twice: the first one comes first"
    done = compress(*RANK, *documents)
    assert [line.split("\t")[1] for line in done.out.splitlines()] == [printable(documents[i], 200) for i in order]
    file = tmp_path / "documents.jsonl"
    write_rows(file, [{"id": f"d{i}", "document": text} for i, text in enumerate(documents)])
    done = compress(*RANK, "--file", file, "--top", "2", "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["id"], row["index"], row["document"]) for row in rows] == [
        (f"d{i}", i, documents[i]) for i in order[:2]
    ]
    found = load(mine).rank(RANK[3], documents, top=3)
    assert [one.index for one in found] == order[:3]
    assert [one.score for one in found] == pytest.approx([scores[i] for i in order[:3]], abs=1e-6)
    assert load(mine).rank(RANK[3], []) == []
    with pytest.raises(UserError, match="top 0: at least one document is ranked"):
        load(mine).rank(RANK[3], documents, top=0)


def test_a_service_needs_a_document_in_each_row(mine: Path) -> None:
    assert Service(mine).answer([{"query": "a", "document": "b"}])[0].keys() == {"score"}
    for row in ({"query": "a"}, "a"):
        with pytest.raises(UserError, match="row 0: text 'document' is missing; known: query"):
            Service(mine).answer([row])


def test_an_empty_line_is_no_document(mine: Path, compress: Cli) -> None:
    Path("blank.txt").write_text("the plot\n \nthe film\n\n")
    done = compress(*RANK, "--file", "blank.txt", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.line == "error: blank.txt:2: the line is empty; write a text on it, or remove it"
    Path("blank.txt").write_text("the plot\nthe film\n \n\n")
    done = compress(*RANK, "--file", "blank.txt", "--json")
    assert done.code == 0, done.err
    found = sorted((row["index"], row["document"]) for row in map(json.loads, done.out.splitlines()))
    assert found == [(0, "the plot"), (1, "the film")]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*RANK, "text", "--pair", "other"), "--pair: cannot be combined with --query; remove it"),
        ((*RANK[:2], "text", "--top", "3"), "--top: has no effect without --query; add --query TEXT"),
        (RANK, 'no input text; give texts, or --file FILE ("-" for standard input)'),
        ((*RANK[:2], "--query", " ", "text"), "--query: it is empty"),
        ((*RANK, "text", ""), "text 2: it is empty"),
        ((*RANK, "--file", "bad.jsonl"), "bad.jsonl:2: the row has no document; did you mean 'documents'?"),
        ((*RANK, "--file", "queries.csv"), "queries.csv:2: the row has no document; name its column"),
        (("predict", "other", *RANK[2:], "a"), "other: only rerankers and embedding models rank documents: the task"),
    ],
)  # fmt: skip
def test_what_cannot_be_ranked(mine: Path, other_model: Path, compress: Cli, words: tuple[str, ...], line: str) -> None:
    write_rows(Path("bad.jsonl"), [{"document": "a"}, {"documents": "b"}])
    Path("queries.csv").write_text("query,positive\na,b\n")
    done = compress(*words)
    assert (done.code, done.out) == (2, "")
    assert f"error: {line}" in done.err


# --- the verbs ----------------------------------------------------------------------------------------------------

CUT = {
    "prune-vocab": ("--min-count", "1"),
    "prune-width": ("--keep", "0.5", "--no-recover"),
    "factorize": ("--keep", "0.6", "--no-recover"),
    "share": ("--groups", "2", "--pattern", "cka", "--embedding-size", "8", "--residual-rank", "2", "--no-recover"),
    "sparsify": ("--no-recover",),
    "drop-tokens": ("--keep-tokens", "50", "--no-recover"),
}


def test_cut_quantize_export_and_benchmark(mine: Path, compress: Cli) -> None:
    folder = as_cross_encoder(mine, layout="new", activation="identity")
    cut = result(compress("prune-layers", folder, *DATA, "--keep", "4", "--no-recover", "--output", "runs/cut"))
    assert inspect(cut).config.depth == 4
    assert inspect(cut).meta.task_settings["activation"] == "identity"
    check_scores(cut)
    pytest.importorskip("onnxruntime")
    small = result(compress("quantize", cut, *DATA, "--no-sensitivity", "--output", "runs/small"))
    done = compress("evaluate", small, "--against", folder, *DATA, "--json")
    assert done.code == 0, done.err
    values = figures(done)
    assert values["vs_teacher/size_ratio"] > 1
    assert {
        "vs_teacher/agreement_pct",
        "vs_teacher/rank_correlation",
        "vs_teacher/ndcg_at_10_difference",
    } <= values.keys()
    done = compress("export", folder, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    texts, pairs = zip(*PAIRS, strict=True)
    found = [answer.score for answer in Predictor(Path("out"), runtime="onnxruntime").predict(texts, pairs)]
    np.testing.assert_allclose(found, check_scores(Path("out")), atol=1e-5)
    done = compress("benchmark", folder, small, "--batch", "30", "--length", "16", "--repeats", "5", "--threads", "1")
    assert done.code == 0, done.err


@pytest.mark.parametrize("verb", thorough_but(["prune-vocab"], CUT))
def test_verbs_without_training(mine: Path, compress: Cli, verb: str) -> None:
    made = result(compress(verb, mine, *DATA, *CUT[verb], "--output", "runs/made"))
    assert inspect(made).meta.task == "reranking"
    if inspect(made).stock_class is not None:
        check_scores(made)
    done = compress("evaluate", made, "--against", mine, *DATA, "--json")
    assert done.code == 0, done.err
    assert 0 < figures(done)["quality/ndcg_at_10"] <= 1


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which every fit of `mine` finds the blocks that the first one built."""
    return tmp_path_factory.mktemp("blocks")


@pytest.mark.thorough
@pytest.mark.parametrize("train", ["none", "recover"])
def test_fit_to_a_budget(mine: Path, blocks: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch, train: str) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("COMPRESS_CACHE", str(blocks))
    monkeypatch.setattr(block_table, "_least", lambda calls, *_: ([1.0 + 0.1 * i for i in range(len(calls))], False))
    flags = ("--length", "16", "--runtime", "onnxruntime", "--plans", "1", "--max-mb", "0.03", "--uncertified")
    trained = ("--train", train, *(("--steps", "4") if train != "none" else ()))
    done = compress("fit", mine, *DATA, *flags, *trained, "--output", "runs/fit", "--json")
    assert done.code == 0, done.err
    assert "skipped" not in done.err, "every training came to its end"
    assert ("recovery steps" in done.out) == (train == "recover")
    told = json.loads(done.out)["certificate"]
    assert told["quality"]["metric"] == "ndcg_at_10"


# --- training -----------------------------------------------------------------------------------------------------


def test_an_embedder_becomes_a_reranker_by_fine_tuning(mine: Path, own_model: Path, compress: Cli) -> None:
    loaded = load_model(own_model, keep=())
    shutil.rmtree(own_model)
    save_model(own_model, loaded.model, tokenizer_files=loaded.tokenizer_files)
    as_sentence_transformers(own_model, 16, pooling="mean")
    words = ("finetune", "--model", own_model, "--task", "reranking", *DATA, "--max-length", "40")
    rate = ("--set", "stages.0.training.learning_rate=0.01", "--set", "stages.0.training.steps=4")
    made = result(compress(*words, *rate, "--output", "runs/tuned"))
    assert not (made / "modules.json").exists()
    assert inspect(made).meta.task_settings.get("activation", "sigmoid") == "sigmoid"
    check_scores(made)


@pytest.mark.parametrize("objective", ["recipe", pytest.param("labelled", marks=pytest.mark.thorough)])
def test_distil_a_reranker(mine: Path, compress: Cli, objective: str) -> None:
    flags = ("--recipe", "rerank-distil", "--teacher", "mine", *DATA, "--set", "data.max_length=40")
    steps = 20 if objective == "recipe" else 2
    flags = (*flags, "--set", f"stages.0.training.steps={steps}", "--set", "stages.0.training.learning_rate=0.003")
    if objective == "labelled":
        flags = (*flags, "--set", "stages.0.objectives=[{kind: margin_mse}, {kind: hard_labels}]")
    made = result(compress("distill", *flags, "--output", "runs/distilled"))
    assert inspect(made).config.depth == 3
    check_scores(made)
    if objective == "recipe":
        done = compress("evaluate", made, "--against", mine, *DATA, "--json")
        assert figures(done)["vs_teacher/rank_correlation"] > 0.5


def test_recovery_training(mine: Path, compress: Cli) -> None:
    words = ("prune-layers", mine, *DATA, "--keep", "2", "--steps", "4", "--output", "runs/cut")
    check_scores(result(compress(*words)))


# --- bad input ----------------------------------------------------------------------------------------------------


def test_what_is_not_supported_is_rejected_before_any_work(mine: Path, compress: Cli) -> None:
    write_rows(Path("texts/test.jsonl"), [{"text": f"the film {i}"} for i in range(20)])
    Path("lines.txt").write_text("".join(f"the film {i}\n" for i in range(20)))
    shutil.copytree(mine, "tanh")
    config = json.loads((mine / "config.json").read_text())
    config["sentence_transformers"]["activation_fn"] = "torch.nn.modules.activation.Tanh"
    Path("tanh/config.json").write_text(json.dumps(config))
    told = {
        ("evaluate", "mine", "--data", "texts"): "a reranker needs queries with documents",
        ("evaluate", "mine", *DATA, "--task", "embedding"): "this data is for embedding, and the model's head is for",
        ("evaluate", "mine", *DATA, "--metric", "spearman"): "spearman has no figure on ranking",
        ("evaluate", "tanh", *DATA): "activation_fn 'torch.nn.modules.activation.Tanh' is not supported",
        ("predict", "mine", "a text"): "a reranker needs pairs of a query and a document",
        ("predict", "mine", "a text", "--embeddings"): "it scores pairs and gives no vectors",
        ("evaluate", "mine", *DATA, "--vectors", "int8"): "--vectors needs a model for sentence embeddings",
        ("make-static", "mine", "--data", "texts"): "make-static needs a model for sentence embeddings",
        ("make-static", "mine", *DATA): "make-static needs a model for sentence embeddings",
        ("reduce-dimensions", "mine", "--data", "texts"): "reduce-dimensions needs a model for sentence embeddings",
        ("reduce-dimensions", "mine", *DATA): "reduce-dimensions needs a model for sentence embeddings",
        **{
            ("distill", "--recipe", "embed-distil", "--teacher", "mine", *data): (
                "objective vectors compares sentence embeddings, and the model is a reranker; give a "
                "sentence-transformers folder, or use margin_mse and listwise_kl, as in recipe rerank-distil"
            )
            for data in (DATA, ("--data", "texts"), ("--data", "lines.txt"))
        },
        ("distill", "--recipe", "rerank-distil", "--teacher", "mine", *DATA, "--augment", "mix"): (
            "augmentation is not supported for reranking"
        ),
        ("distill", "--recipe", "rerank-distil", "--teacher", "mine", *DATA, "--unlabelled", "texts"): (
            "not supported for reranking"
        ),
    }
    for words, line in told.items():
        out = () if words[0] in ("predict", "evaluate") else ("--output", "out")
        done = compress(*words, *out)
        assert done.code == 2, (words, done.err)
        assert line in done.line, (words, done.line)
        assert not Path("out").exists()


def test_objectives_of_rerankers_need_queries(own_model: Path, compress: Cli) -> None:
    words = ("distill", "--recipe", "./task.yaml", "--teacher", own_model, "--data", "data", "--output", "out")
    done = compress(*words, "--set", "stages.0.objectives=[{kind: listwise_kl}]")
    assert done.code == 2, done.out
    assert "objective listwise_kl compares the documents of a query, and the task is classification" in done.line
