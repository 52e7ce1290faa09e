"""Who teaches a run: folders, recipes, several together, and what a teacher lacks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions
from compress.errors import ExitCode, Stopped, UserError
from compress.recipe import Recipe, load_recipe
from compress.run import run as run_module
from compress.run import teachers
from compress.run.run import Run
from compress.run.teachers import (
    Teachers,
    find_teachers,
    is_recipe,
    join_teachers,
    overrides,
    require_use_of_general,
    teacher_recipe,
    teacher_rows,
)
from compress.storage import atomic
from compress.storage.lock import FolderInUseError, Holder, RunStatus

TRAINING = {"steps": 2}
TASK = {
    "kind": "distill", "level": "task_specific", "student": {"layers": [0]}, "objectives": [{"kind": "hard_labels"}],
    "training": TRAINING,
}  # fmt: skip
GENERAL = {**TASK, "level": "general", "objectives": [{"kind": "soft_targets", "on": "vocabulary"}]}
HIDDEN = {**GENERAL, "objectives": [{"kind": "hidden_mse"}]}


def recipe(*stages: dict[str, Any], **more: Any) -> Recipe:
    content = {"name": "x", "teacher": "t", "data": {"source": "d"}, "corpus": {"source": "c"}, **more}
    return load_recipe({**content, "stages": list(stages)})


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Name of a model folder → its heads."""
    known: dict[str, dict[str, str]] = {
        "tuned": {"task": "classification"}, "both": {"task": "classification", "mlm": "mlm"},
        "pretrained": {"mlm": "mlm"}, "bare": {}, "embedder": {"task": "embedding"},
    }  # fmt: skip
    monkeypatch.setattr(teachers, "resolve", Path)
    monkeypatch.setattr("compress.modelfolder.resolve.require_there", lambda name: None)
    monkeypatch.setattr(
        teachers.modelfolder,
        "inspect",
        lambda folder: SimpleNamespace(
            heads={name: SimpleNamespace(kind=kind) for name, kind in known[Path(folder).name].items()}
        ),
    )
    monkeypatch.setattr(teachers.modelfolder, "fingerprint", lambda folder: f"print of {folder}")
    return known


def refusal(one: Recipe, name: str, inputs: dict[str, Path] | None = None) -> str:
    with pytest.raises(UserError) as refused:
        find_teachers(one, name, inputs or {})
    return refused.value.line()


def test_a_fine_tuned_teacher_of_the_task(heads: dict[str, dict[str, str]]) -> None:
    assert find_teachers(recipe(TASK), "m/tuned", {}) == Teachers(Path("m/tuned"))
    assert find_teachers(recipe(TASK), "m/both", {}) == Teachers(Path("m/both"), Path("m/both"))
    assert refusal(recipe(TASK), "m/bare") == (
        "--teacher m/bare: the teacher has no task head; fine-tune it first: compress finetune --model m/bare"
    )


def test_general_distillation_needs_the_pretrained_encoder(heads: dict[str, dict[str, str]]) -> None:
    both = recipe(GENERAL, TASK)
    general = {"general_teacher": Path("m/pretrained")}
    assert find_teachers(both, "m/tuned", general) == Teachers(Path("m/tuned"), Path("m/pretrained"))
    said = refusal(both, "m/tuned")
    assert "needs a teacher with a masked-LM head: this teacher has none; add --general-teacher FOLDER" in said
    said = refusal(recipe(HIDDEN, TASK, name="tinybert"), "m/tuned")
    assert "needs the teacher's pretrained encoder: this teacher is fine-tuned" in said
    assert said.endswith("or use --recipe tinybert-task"), "a recipe that does without"
    assert "--general-teacher m/bare: the general teacher has no masked-LM head" in refusal(
        both, "m/tuned", {"general_teacher": Path("m/bare")}
    )
    assert find_teachers(recipe(HIDDEN, TASK), "m/tuned", {"general_teacher": Path("m/bare")}).general == Path("m/bare")


def test_an_encoder_without_a_task_teaches_on_text_itself(heads: dict[str, dict[str, str]]) -> None:
    labels = {"kind": "finetune", "training": TRAINING}
    for name in ("m/bare", "m/embedder"):
        assert find_teachers(recipe(HIDDEN, labels), name, {}) == Teachers(None, Path(name)), "it answers no labels"
        assert f"--teacher {name}: recipe x first trains on a corpus, which needs a teacher with a masked-LM head" in (
            refusal(recipe(GENERAL), name)
        )
    embedder = Path("m/embedder")
    assert find_teachers(recipe(HIDDEN), "m/embedder", {}) == Teachers(embedder, embedder), "compared with its student"


def test_encoders_without_a_task_do_not_teach_together() -> None:
    labels = {"kind": "finetune", "training": TRAINING}
    several = recipe(HIDDEN, labels, teacher=None, teachers=[{"model": "m/bare"}, {"model": "m/other"}])
    with pytest.raises(UserError) as refused:
        join_teachers(several, [Teachers(None, Path("m/bare"))] * 2)
    assert refused.value.line() == (
        "--teacher m/bare: cannot be one of several teachers: it has no task head, and several teachers answer a task "
        "together; give one teacher"
    )


def test_a_general_teacher_that_no_stage_reads_is_rejected() -> None:
    folder = Path("m/pretrained")
    with pytest.raises(UserError) as refused:
        require_use_of_general(recipe(TASK), folder)
    assert refused.value.line() == (
        "--general-teacher m/pretrained: has no effect: no stage of recipe x trains on a corpus or replaces words "
        "(--augment masked-lm); remove it"
    )
    masked = {"method": "masked-lm"}
    for stages in ([GENERAL, TASK], [{**TASK, "augmentation": masked}]):
        require_use_of_general(recipe(*stages), folder)
    with pytest.raises(UserError):
        require_use_of_general(recipe({**TASK, "augmentation": {**masked, "model": "other"}}), folder)


def test_one_of_several_gives_its_task_head_alone(heads: dict[str, dict[str, str]]) -> None:
    assert find_teachers(recipe(GENERAL, TASK), "m/both", {}, lead=False) == Teachers(Path("m/both"))


def test_fingerprints_name_all_that_a_run_depends_on(heads: dict[str, dict[str, str]]) -> None:
    found = Teachers(Path("m/tuned"), Path("m/pretrained")).fingerprints()
    assert found == {"teacher": "print of m/tuned", "general teacher": "print of m/pretrained"}
    assert Teachers().fingerprints() == {}


# --- several --------------------------------------------------------------------------------------------------------


def several(*rows: dict[str, Any], **more: Any) -> Recipe:
    return recipe(TASK, teacher=None, teachers=list(rows), corpus=None, **more)


def test_several_teachers_are_weighed_and_one_leads(
    heads: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(teachers.Ensemble, "check", lambda _, length: lengths.append(length))
    one = several({"model": "a", "weight": 3.0}, {"model": "teacher", "seed": 7, "layers": True})
    made = [Teachers(Path("a"), told=frozenset({0})), Teachers(Path("b"), Path("m/pretrained"))]
    joined = join_teachers(one, made)
    assert joined.ensemble is not None
    assert [(m.name, m.folder, m.weight) for m in joined.ensemble.members] == [
        ("a", Path("a"), 0.75), ("teacher (seed 7)", Path("b"), 0.25),
    ]  # fmt: skip
    assert (joined.task, joined.general, joined.ensemble.lead) == (Path("b"), Path("m/pretrained"), 1)
    assert joined.told == frozenset({0}), "which of them have a tracked run, by their place"
    assert joined.fingerprints()["teacher"] == joined.ensemble.fingerprint
    assert one.data is not None
    assert lengths == [one.data.max_length]
    assert join_teachers(recipe(TASK), made) is made[0]


# --- recipes as teachers --------------------------------------------------------------------------------------------


def test_a_name_means_a_recipe_or_a_folder(heads: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_recipe("teacher")
    assert is_recipe("./mine.yaml")
    assert not is_recipe("runs/teacher")
    assert teacher_recipe(recipe(TASK), teacher_rows(recipe(TASK, teacher="runs/t"))[0]) is None
    with pytest.raises(UserError, match="no such teacher 'teachr'; did you mean 'teacher'"):
        teachers.teacher_folder("teachr")
    assert teachers.teacher_folder("runs/t") == Path("runs/t")
    assert teachers.teacher_folder("m/embedder") == Path("m/embedder"), "a path is no misspelt recipe"


def test_a_recipe_without_a_teacher_asks_for_one() -> None:
    with pytest.raises(UserError, match="--teacher: recipe x needs a teacher"):
        teacher_rows(recipe(TASK, teacher=None))


def test_a_teacher_learns_from_the_students_data_with_a_seed_of_its_own() -> None:
    student = several({"model": "teacher", "seed": 7}, {"model": "teacher"}, data={"source": "d", "max_length": 24})
    made = [teacher_recipe(student, row) for row in teacher_rows(student)]
    assert all(one is not None and one.data is not None for one in made)
    assert [(one.data.source, one.data.max_length) for one in made if one and one.data] == [("d", 24)] * 2
    seeds = [one.seed for one in made if one]
    assert seeds == [7, load_recipe("teacher").seed]


def test_only_what_differs_is_taken_over() -> None:
    other = load_recipe("teacher")
    assert other.data is not None
    same = other.model_copy(update={"data": other.data.model_copy(update={"source": "mine"})})
    assert [(o.path, o.value, o.origin) for o in overrides(same, other)] == [
        ("data.source", "mine", "the student's data.source")
    ]
    split = other.model_copy(update={"data": other.data.model_copy(update={"unlabelled_split": "more"})})
    assert overrides(split, other) == [], "a teacher reads labelled rows alone"
    assert overrides(other.model_copy(update={"data": None}), other) == []


# --- one teacher for several commands -------------------------------------------------------------------------------

OTHER = RunStatus("running", Holder(7, "there", "", "today", "", 0.0))


class Command:
    """A run whose teacher is a recipe; others may train it at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: list[RunStatus], *, in_use: int = 0) -> None:
        self.in_use, self.trained, self.slept = in_use, 0, 0
        monkeypatch.setattr(run_module, "lock_status", lambda _: found.pop(0) if found else RunStatus("none"))
        monkeypatch.setattr(run_module.time, "sleep", self.sleep)
        monkeypatch.setattr(run_module, "Run", self.begin)
        self.asked: list[RunOptions] = []
        self.run: Any = object.__new__(Run)
        self.run.options, self.run.console = RunOptions(), Console()
        self.stopped: list[str] = []
        self.run.contexts = SimpleNamespace(stop_if_requested=self.stopped.append)

    def begin(self, recipe: Recipe, options: RunOptions, *_: object, **__: object) -> SimpleNamespace:
        self.asked.append(options)
        return SimpleNamespace(go=self.train)

    def sleep(self, seconds: float) -> None:
        self.slept += 1

    def train(self) -> None:
        if self.in_use:
            self.in_use -= 1
            raise FolderInUseError("another run uses this folder", code=ExitCode.REFUSED)
        self.trained += 1


def finish(folder: Path) -> None:
    """What a command leaves that trained the teacher."""
    with atomic.new_folder(folder / "model"):
        pass
    atomic.write_json(folder / "compress-run.json", {"status": "finished"})


def test_a_teacher_that_another_command_trains_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "teacher-1"
    finish(folder)
    command = Command(monkeypatch, [OTHER, OTHER, OTHER])
    command.run._make_teacher(recipe(TASK, name="teacher"), folder, None)
    assert (command.trained, command.slept) == (0, 3)
    assert len(command.stopped) == 3, "a signal ends the waiting"
    assert capsys.readouterr().err.splitlines() == [
        f"teacher: waiting for process 7 on there, started today, which is training it in {folder}",
        f"teacher: {folder}/model, from an earlier run of recipe teacher",
    ]


def test_a_command_that_began_a_moment_earlier_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither had the folder when both looked."""
    command = Command(monkeypatch, [RunStatus("none"), OTHER], in_use=1)
    command.run._make_teacher(recipe(TASK, name="teacher"), tmp_path / "teacher-1", None)
    assert (command.trained, command.slept) == (1, 2), "the other was stopped: this one goes on"


def test_it_is_made_whole_where_a_part_of_the_chain_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--until 0 trained the tokenizer of the teacher alone, and no teacher."""
    command = Command(monkeypatch, [])
    command.run.options = RunOptions(chain=ChainOptions(until="0", begin="0", cached=False))
    command.run._make_teacher(recipe(TASK, name="teacher"), tmp_path / "teacher-1", None)
    assert [options.chain for options in command.asked] == [ChainOptions(cached=False)]


def test_a_signal_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(before: str) -> None:
        raise Stopped(f"stopped by SIGINT before {before}")

    command = Command(monkeypatch, [OTHER] * 9)
    command.run.contexts.stop_if_requested = stop
    with pytest.raises(Stopped, match="stopped by SIGINT before the teacher was trained"):
        command.run._make_teacher(recipe(TASK, name="teacher"), tmp_path / "teacher-1", None)
