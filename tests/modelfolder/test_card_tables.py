"""Figures of a model card, and the head that model hubs read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import yaml

from compress.contracts import FAKE
from compress.modelfolder.card.figures import format_measured, format_slices
from compress.modelfolder.card.front import format_front
from compress.modelfolder.meta import DataNote, FolderMeta, MeasurementNote, Parent


def note(context: dict[str, str] | None = None, **values: float) -> MeasurementNote:
    return MeasurementNote(
        values={name.replace("__", "/"): value for name, value in values.items()}, context=context or {}
    )


def front(meta: FolderMeta, **facts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "name": "x", "onnx": False, "quantized": False, "is_static": False, "is_stock": True, "heads": ("task",),
    }  # fmt: skip
    text = format_front(meta, SimpleNamespace(**{**usual, **facts}))  # type: ignore[arg-type]
    assert text.startswith("---\n")
    assert text.endswith("\n---")
    return yaml.safe_load(text.removesuffix("---"))


def test_a_row_of_each_figure_with_the_teachers_beside_it() -> None:
    ours = note({"dataset": "/home/me/sets/reviews/test", "rows": "9"}, quality__accuracy=0.9,
                quality__accuracy_low=0.85, quality__accuracy_high=0.94, size__disk_mb=10.0,
                vs_teacher__p_value=0.0123)  # fmt: skip
    teacher = note(quality__accuracy=0.0, size__disk_mb=40.0)
    text = format_measured(ours, teacher)
    assert "| accuracy | 90.00 % [85.00, 94.00] | 0.00 % |" in text, "as the table on the terminal"
    assert "| on disk | 10.00 MB | 40.00 MB |" in text
    assert text.endswith("\n\n- quality on 9 rows of reviews/test; intervals are 95 %"), "as on the terminal"
    assert "/" not in text.replace("reviews/test", ""), "no name of MLflow"
    assert "/home" not in text
    assert "|  | this model | parent |" in format_measured(ours, teacher, "parent")
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {4}
    assert {line.count("|") for line in format_measured(ours, None).splitlines() if line.startswith("|")} == {3}
    simulated = note(**{FAKE.replace("/", "__") + "accuracy": 0.8})
    assert "| accuracy | 80.00 % |" in format_measured(simulated, None)
    assert "| this model (simulated) |" in format_measured(simulated, None)
    named = note({"positive_label": "[x](y)", "runtime": "www.x"}, quality__f1_binary=0.5)
    foreign = format_measured(named, note({"runtime": "torch"}))
    assert "| F1 of '\\[x\\]\\(y\\)' | 50.00 % |  |" in foreign
    assert "www." not in foreign
    assert (format_measured(None, teacher), format_slices(None), format_slices(ours)) == ("", "", "")


def test_the_head_names_what_hubs_know() -> None:
    names = ("org/base", "model", "run/student", "/home/me/x", "org/base")
    parents = tuple(Parent(role="base", name=name, fingerprint="0") for name in names)
    meta = FolderMeta(
        method="prune_layers", task="classification", lineage=parents, language=("no", "de"), license="apache-2.0",
        data=DataNote(name="hf:org/reviews", fingerprint="0", rows={}),
        measurement=note(
            {"dataset": "hf:org/reviews/test", "metric": "matthews"}, quality__accuracy=0.9, quality__matthews=0.8
        ),
    )  # fmt: skip
    found = front(meta, quantized=True, onnx=True, is_stock=False)
    assert (found["library_name"], found["pipeline_tag"]) == ("onnx", "text-classification")
    assert found["language"] == ["no", "de"]
    assert (found["base_model"], found["base_model_relation"]) == (["org/base"], "quantized")
    assert found["tags"] == ["compress", "prune-layers", "onnx", "quantized"]
    assert (found["datasets"], found["metrics"]) == (["org/reviews"], ["matthews_correlation", "accuracy"])
    (result,) = found["model-index"][0]["results"]
    assert result["dataset"]["split"] == "test"
    assert [row["name"] for row in result["metrics"]] == ["matthews", "accuracy"]


def test_the_head_leaves_out_folders_of_this_machine() -> None:
    parents = tuple(Parent(role="teacher", name=name, fingerprint="0") for name in ("embedder", "org/base"))
    meta = FolderMeta(
        task="embedding", lineage=parents, data=DataNote(name="reviews", fingerprint="0", rows={}),
        measurement=note({"dataset": "reviews/test", "metric": "ndcg_at_10"}, quality__ndcg_at_10=0.5,
                         quality__recall_at_1=0.25),
    )  # fmt: skip
    found = front(meta)
    assert found["base_model"] == ["org/base"]
    assert "datasets" not in found
    assert found["metrics"] == ["ndcg@10", "recall@1"], "as sentence-transformers calls them"


def test_foreign_text_cannot_leave_its_place_in_the_head() -> None:
    meta = FolderMeta(
        method='a"\nb', license="MIT\nx: 1", measurement=note({"dataset": 'x"\ny: [/te st'}, quality__accuracy=0.5)
    )
    found = front(meta, name='evil"\n---')
    assert found["tags"] == ["compress", "a--b"]
    assert "license" not in found
    assert set(found) == {"library_name", "pipeline_tag", "metrics", "tags", "model-index"}


def test_a_model_of_nothing_known() -> None:
    assert front(FolderMeta(), heads=(), is_stock=False) == {"library_name": "compress", "tags": ["compress"]}
