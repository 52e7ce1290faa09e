"""One recipe from teacher to table: what it leaves in its folder, on the screen and in the store."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from e2e_toy import SMOKE, River, Server, copy_folder, opinions, sha

from compress.modelfolder import folder as modelfolder
from compress.predict.predictor import Predictor
from compress.recipe import load_recipe
from compress.storage import atomic
from compress.tracking import Store

if TYPE_CHECKING:
    from mlflow.entities import Run

FIGURES = {
    "quality/accuracy", "quality/accuracy_low", "quality/accuracy_high", "quality/f1_macro",
    "size/disk_mb", "size/params_m", "size/params_no_embedding_m",
    "speed/latency_p50_ms", "speed/latency_p95_ms", "speed/throughput_sps", "speed/gflops", "memory/peak_mb",
}  # fmt: skip
AGAINST = {
    "vs_teacher/quality_kept_pct", "vs_teacher/size_ratio", "vs_teacher/params_ratio", "vs_teacher/speedup",
    "vs_teacher/agreement_pct", "vs_teacher/accuracy_difference", "vs_teacher/p_value",
}  # fmt: skip
PARAMS = {
    "method", "recipe", "seed", "device", "threads", "runtime", "precision", "student.layers", "student.hidden",
}  # fmt: skip
ROWS = (
    "accuracy", "parameters", "without embeddings", "on disk", "GFLOPs per sequence", "latency p50", "latency p95",
    "throughput", "peak memory above weights", "quality retained", "agreement with teacher", "smaller on disk",
)  # fmt: skip


def student(river: River) -> Path:
    return river.folder / "runs/smoke/student"


def teacher(river: River) -> Path:
    (found,) = (river.folder / "runs/teachers").iterdir()
    return found


# --- the screen ---------------------------------------------------------------------------------------------------


def test_the_table_holds_every_figure(river: River) -> None:
    table = river.first.out[river.first.out.rindex("teacher", 0, river.first.out.index("control")) :]
    for name in ROWS:
        line = next(line for line in table.splitlines() if line.strip().startswith(name))
        assert sum(char.isdigit() for char in line) >= 2, line
    assert "intervals are 95 %" in table
    assert "a verdict on the method needs three seeds or more" in table


def test_the_last_lines_say_how_to_use_and_see_it(river: River) -> None:
    last = river.first.out.strip().splitlines()[-4:]
    assert last[0] == "model    runs/smoke/student"
    assert last[1] == 'use it   compress predict runs/smoke/student "some text"'
    assert last[2] == "see it   compress ui --experiment compress"
    assert last[3].startswith("see it   mlflow ui --backend-store-uri sqlite:///")


def test_what_goes_on_is_told_on_stderr(river: River) -> None:
    mapped = "layer map (student layers from teacher, which has 0..3): 0 from 0, 1 from 2; not used: 1, 3"
    assert mapped in river.first.err
    assert "teacher: running recipe smoke-teacher once" in river.first.err
    assert "0-distill 4/4 100%" in river.first.err
    assert "1-distill-control 6/6 100%" in river.first.err


def test_json_is_one_document_and_nothing_else(river: River) -> None:
    said = json.loads(river.second.out)
    assert said["model"] == "runs/smoke-2/student"
    assert [model["role"] for model in said["models"]] == ["teacher", "student", "control"]
    for model in said["models"]:
        assert model["values"].keys() >= FIGURES
        assert (model["values"].keys() >= AGAINST) == (model["role"] != "teacher")
        assert all(math.isfinite(value) for value in model["values"].values())
    assert said["models"][1]["context"]["dataset"] == "data/test"


# --- the second run -----------------------------------------------------------------------------------------------


def test_the_teacher_is_made_once(river: River) -> None:
    assert (
        f"teacher: runs/teachers/{teacher(river).name}/model, from an earlier run of recipe smoke-teacher"
        in river.second.err
    )
    assert "1-pretrain" not in river.second.err


@pytest.mark.store
@pytest.mark.thorough
def test_a_teacher_that_was_told_elsewhere_is_told_again(river: River, server: Server, tmp_path: Path) -> None:
    """Else the page of another experiment would show a student without the teacher that it is compared with."""
    folder = tmp_path / "work"
    copy_folder(river.folder, folder)
    done = server.run(folder, *SMOKE, "--experiment", "elsewhere", "--set", "stages.1.control=false")
    assert done.code == 0, done.err
    page = Page(folder, "elsewhere")
    run = page.run("smoke-3/reference")
    assert run.data.tags["compress.role"] == "teacher"
    assert run.data.metrics.keys() >= FIGURES


def test_the_same_request_gives_the_same_weights(river: River) -> None:
    again = river.folder / "runs/smoke-2"
    for name in ("student", "control"):
        assert sha(river.folder / "runs/smoke" / name / "model.safetensors") == sha(again / name / "model.safetensors")
    assert sha(student(river) / "model.safetensors") != sha(student(river).parent / "control/model.safetensors")


# --- the folder ---------------------------------------------------------------------------------------------------


def test_the_folder_holds_the_run(river: River) -> None:
    run = river.folder / "runs/smoke"
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names >= {"student", "control", "stages", "recipe.yaml", "environment.json", "compress-run.json"}
    assert {path.name for path in (run / "stages").iterdir()} == {"0-distill", "1-distill", "1-distill-control"}
    record = json.loads((run / "compress-run.json").read_text())
    assert (record["status"], record["command"]) == (
        "finished",
        "compress distill --recipe smoke --data data --set corpus.source=corpus.txt",
    )
    assert record["read"].keys() == {"data", "corpus", "teacher", "general teacher"}
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["threads"] == "1"


def test_the_recipe_of_the_run_can_be_run_again(river: River, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(river.folder)
    recipe = load_recipe("runs/smoke/recipe.yaml")
    assert recipe.data is not None
    assert recipe.data.source == "data"
    assert recipe.stages[0].student.layers == (0, 2)


@pytest.mark.parametrize("name", ["student", "control"])
def test_a_result_is_a_sound_model_folder_that_knows_its_origin(river: River, name: str) -> None:
    folder = river.folder / "runs/smoke" / name
    assert atomic.verify_folder(folder) == []
    meta = modelfolder.inspect(folder).meta
    assert meta.label_names == ("negative", "positive")
    assert meta.task == "classification"
    parents = {parent.role: parent.fingerprint for parent in meta.lineage}
    assert parents.keys() == {"start", "teacher"}, "the student of the corpus stage, and who taught it the task"
    assert parents["teacher"] == modelfolder.fingerprint(teacher(river) / "model")
    assert meta.data is not None
    assert meta.data.rows == {"train": 64, "validation": 16, "test": 32, "unlabelled": 24}
    assert meta.measurement is not None
    assert meta.measurement.values.keys() >= FIGURES


def test_the_card_shows_the_figures(river: River) -> None:
    card = (student(river) / "README.md").read_text()
    assert "accuracy" in card
    assert "teacher" in card


def test_the_student_is_the_half_of_its_teacher(river: River) -> None:
    small, large = modelfolder.inspect(student(river)), modelfolder.inspect(teacher(river) / "model")
    assert (small.config.depth, large.config.depth) == (2, 4)
    assert small.stock_class == "BertForSequenceClassification"


def test_transformers_loads_the_student_and_answers_alike(river: River) -> None:
    transformers = pytest.importorskip("transformers")
    texts = [row["text"] for row in opinions()["test"]]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(student(river)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(student(river))
    with torch.no_grad():
        theirs = model(**tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")).logits
    ours = Predictor(student(river))
    logits = ours.logits(ours.task.encode_texts(ours.tokenizer, texts, None, max_length=32))
    assert torch.allclose(torch.from_numpy(logits), theirs, atol=1e-5)
    assert [model.config.id2label[i] for i in range(2)] == ours.label_names


# --- the store ----------------------------------------------------------------------------------------------------


class Page:
    """The store as a reader sees it."""

    def __init__(self, folder: Path, name: str = "compress") -> None:
        self.client: Any = Store(f"sqlite:///{folder / 'mlruns/mlflow.db'}").client()
        experiment = self.client.get_experiment_by_name(name)
        self.experiment = experiment.experiment_id
        self.runs: list[Run] = list(self.client.search_runs([self.experiment]))

    def run(self, name: str) -> Run:
        (found,) = [run for run in self.runs if run.info.run_name == name]
        return found

    def models(self, run: Run) -> list[Any]:
        found = self.client.search_logged_models([self.experiment])
        return [model for model in found if model.source_run_id == run.info.run_id]


@pytest.fixture(scope="module")
def page(river: River) -> Page:
    return Page(river.folder)


def test_the_store_holds_teacher_and_student_with_their_parts_below(river: River, page: Page) -> None:
    names = {run.info.run_name for run in page.runs}
    parent = teacher(river).name
    assert names == {
        parent, f"{parent}/1-pretrain", "smoke", "smoke/0-distill", "smoke/1-distill-control",
        "smoke-2", "smoke-2/0-distill", "smoke-2/1-distill-control",
    }  # fmt: skip
    for name in names:
        run = page.run(name)
        assert run.info.status == "FINISHED", name
        above = run.data.tags.get("mlflow.parentRunId")
        assert above == (page.run(name.split("/")[0]).info.run_id if "/" in name else None), name


@pytest.mark.parametrize("which", ["teacher", "smoke", "smoke/1-distill-control"])
def test_a_measured_run_has_every_figure_by_its_name(river: River, page: Page, which: str) -> None:
    run = page.run(teacher(river).name if which == "teacher" else which)
    assert run.data.metrics.keys() >= FIGURES | (set() if which == "teacher" else AGAINST)
    assert run.data.params.keys() >= PARAMS - ({"recipe", "seed"} if "/" in which else set())
    role = {"teacher": "teacher", "smoke": "student"}.get(which, "control")
    assert run.data.tags["compress.role"] == role
    assert run.data.tags["compress.method"]
    assert run.data.tags["mlflow.runColor"].startswith("#")
    assert "accuracy" in run.data.tags["mlflow.note.content"]
    point = page.client.get_metric_history(run.info.run_id, "quality/accuracy")
    assert [p.step for p in point] == [0]


def test_the_figures_in_the_store_are_those_on_the_screen(river: River, page: Page) -> None:
    said = json.loads(river.second.out)["models"]
    told = {model["role"]: model["values"] for model in said}
    for name, role in (("smoke-2", "student"), ("smoke-2/1-distill-control", "control")):
        metrics = page.run(name).data.metrics
        assert {key: metrics[key] for key in told[role]} == pytest.approx(told[role], rel=1e-5)  # six digits are sent


def test_curves_have_steps(page: Page) -> None:
    run = page.run("smoke")
    assert "train/loss" in run.data.metrics
    assert page.client.get_metric_history(run.info.run_id, "val/accuracy")[-1].step == 6


def test_a_run_names_its_data_recipe_and_environment(page: Page) -> None:
    run = page.client.get_run(page.run("smoke").info.run_id)
    assert {i.dataset.name for i in run.inputs.dataset_inputs} == {"data/train", "data/test"}
    assert run.data.tags["compress.recipe"] == "smoke"
    artifacts = {a.path for a in page.client.list_artifacts(run.info.run_id)}
    assert artifacts >= {"recipe.yaml", "environment.json"}


def test_each_model_is_logged_once_with_its_figures(river: River, page: Page) -> None:
    for name in (teacher(river).name, "smoke", "smoke/1-distill-control"):
        (model,) = page.models(page.run(name))
        metrics = {metric.key: metric for metric in model.metrics}
        assert metrics.keys() >= FIGURES
        assert metrics["quality/accuracy"].dataset_name == "data/test"
        assert {a.path for a in page.client.list_logged_model_artifacts(model.model_id)} >= {
            "config.json", "model.safetensors", "tokenizer.json",
        }  # fmt: skip
