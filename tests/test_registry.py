"""Parts are found by file name, and their constructor is the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from compress import registry
from compress.contracts import ObjectiveRow, StageSpec
from compress.errors import ExitCode, UserError

OBJECTIVES = "compress.objectives"


def test_parts_are_the_files_of_a_folder() -> None:
    found = registry.parts(OBJECTIVES)
    assert found["soft_targets"] == "compress.objectives.soft_targets"
    assert not [kind for kind in found if kind.startswith("_")]


@pytest.mark.parametrize("kind", registry.parts(OBJECTIVES))
def test_every_objective_has_a_schema_that_builds_it(kind: str) -> None:
    row = registry.schema(OBJECTIVES, kind).model_validate({"kind": kind})
    assert isinstance(row, ObjectiveRow)
    assert row.weight == 1
    assert type(row).model_fields["weight"].description, "what is inherited keeps its help"
    assert type(registry.build(OBJECTIVES, row)) is registry.load(OBJECTIVES, kind)


@pytest.mark.parametrize("kind", registry.stages())
def test_every_stage_has_a_light_spec_that_names_itself(kind: str) -> None:
    spec = registry.stage_spec(kind)
    assert issubclass(spec, StageSpec)
    assert spec.model_fields["kind"].annotation == Literal[kind]
    assert spec.model_fields["kind"].is_required()
    assert (registry.ROOT.parent.joinpath(*registry.stages()[kind].split(".")) / "stage.py").is_file()


def test_unknown_kinds_name_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^unknown objective 'soft_target'; did you mean 'soft_targets'\?$"):
        registry.load(OBJECTIVES, "soft_target")
    with pytest.raises(UserError, match=r"^unknown stage 'distil'; did you mean 'distill'\?$"):
        registry.stage_class("distil")


@pytest.mark.parametrize(
    ("package", "noun"), [(OBJECTIVES, "objective"), ("compress.modelfolder.families", "family"), ("a.tasks", "task")]
)
def test_the_noun_of_a_folder(package: str, noun: str) -> None:
    assert registry.noun(package) == noun


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper")

    monkeypatch.setattr(registry.importlib, "import_module", absent)
    with pytest.raises(UserError) as caught:
        registry.load(OBJECTIVES, "soft_targets")
    assert str(caught.value) == (
        "compress.objectives.soft_targets needs the package 'onnx', which is not installed; "
        "`compress doctor` shows which extra installs it"
    )
    assert caught.value.code == ExitCode.ENVIRONMENT


def test_our_own_broken_import_is_a_bug_not_an_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'compress.nothing'", name="compress.nothing")

    monkeypatch.setattr(registry.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        registry.load(OBJECTIVES, "soft_targets")


# --- the schema from a signature --------------------------------------------------------------------------------


class Part:
    """A part as its author writes it."""

    def __init__(
        self,
        width: NotImported,  # type: ignore[name-defined]  # noqa: F821 - what the caller brings is not resolved
        *,
        rate: Annotated[float, Field(gt=0, le=1)] = 0.5,
        side: Literal["left", "right"],
        layers: tuple[int, ...] | None = None,
    ) -> None: ...


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> type[ObjectiveRow]:
    monkeypatch.setattr(registry, "load", lambda package, kind: Part)
    return registry.schema.__wrapped__(OBJECTIVES, "part")


def test_keyword_arguments_are_the_keys(row: type[ObjectiveRow]) -> None:
    assert list(row.model_fields) == ["kind", "weight", "rate", "side", "layers"]
    made = row.model_validate({"kind": "part", "side": "left", "weight": 2})
    assert made.options() == {"rate": 0.5, "side": "left", "layers": None}
    assert row.__doc__ == "A part as its author writes it."


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "missing"),
        ({"side": "left", "rate": 2}, "less_than_equal"),
        ({"side": "left", "rate": "1"}, "float_type"),
        ({"side": "up"}, "literal_error"),
        ({"side": "left", "width": 3}, "unknown_key"),
        ({"side": "left", "weight": -1}, "greater_than_equal"),
        ({"side": "left", "weight": float("nan")}, "finite_number"),
    ],
)
def test_rows_are_checked(row: type[ObjectiveRow], values: dict, kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        row.model_validate({"kind": "part", **values})
    assert [error["type"] for error in caught.value.errors()] == [kind]


def test_an_argument_without_a_type_is_the_authors_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untyped:
        def __init__(self, *, rate=1): ...

    monkeypatch.setattr(registry, "load", lambda package, kind: Untyped)
    with pytest.raises(UserError, match=r"test_registry.py: class Untyped has arguments without a type: rate; add the"):
        registry.schema.__wrapped__(OBJECTIVES, "untyped")


OBJECTIVE = """
from torch import nn
class Objective(nn.Module):
    coupled = softens = False
    student_needs = teacher_needs = None
    def bind(self, pair): ...
    def count(self, batch): ...
    def forward(self, student, teacher, batch): ...
"""
QUANTIZER = """
class Quantizer:
    fits, calibrated, scheme = frozenset({"weight"}), False, None
    def observe(self, x): ...
    def freeze(self): ...
    def scale_and_zero_point(self, x=None): ...
    def export(self, x): ...
    def __call__(self, x, of=None): ...
"""
TASK = """
from compress.data import task
from compress.data.tasks import regression
class Task(regression.Task):
    kind = "mine"
"""


QUANTIZERS, TASKS = "compress.quantizers", "compress.data.tasks"
NO_NEEDS = "class Objective has no student_needs; class Objective in compress/contracts/parts.py says what it needs"


@pytest.fixture
def write_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a file the only part of every package, called `mine`."""
    file = tmp_path / f"own_part_{tmp_path.name}.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "parts", lambda package: {"mine": file.stem})

    def write(text: str) -> Path:
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize(
    ("package", "text", "old", "new", "line"),
    [
        (OBJECTIVES, OBJECTIVE, "student_needs = ", "", f": {NO_NEEDS}"),
        (OBJECTIVES, OBJECTIVE, "count", "counts", ": class Objective has no count; "),
        (OBJECTIVES, OBJECTIVE, "coupled = ", "", ": class Objective has no coupled; "),
        (OBJECTIVES, OBJECTIVE, "forward", "call", ": class Objective has no forward; "),
        (OBJECTIVES, OBJECTIVE, "class Objective", "class Mine", ": the file has no class Objective; "),
        (
            OBJECTIVES,
            OBJECTIVE,
            "nn.Module",
            "Mod",
            ":3: cannot import this file: NameError: ",
        ),
        (OBJECTIVES, OBJECTIVE, "batch): ...", "batch)", ":7: cannot import this file: SyntaxError: "),
        (QUANTIZERS, QUANTIZER, ", scheme", ", _", ": class Quantizer has no scheme; "),
        (QUANTIZERS, QUANTIZER, "fits, calibrated", "_, _", ": class Quantizer has no fits, calibrated; "),
        (QUANTIZERS, QUANTIZER, "__call__", "call", ": class Quantizer has no __call__; "),
        (TASKS, TASK, "regression.Task", "task.Task", ": class Task has no metrics, claims, "),
    ],
)
def test_what_an_own_part_lacks_is_said(
    package: str, text: str, old: str, new: str, line: str, write_part: Callable[[str], Path]
) -> None:
    file = write_part(text.replace(old, new))
    with pytest.raises(UserError) as caught:
        registry.create(package, "mine")
    assert caught.value.code == ExitCode.INPUT
    assert caught.value.line().startswith(f"{file}{line}")


@pytest.mark.parametrize(("package", "text"), [(OBJECTIVES, OBJECTIVE), (QUANTIZERS, QUANTIZER), (TASKS, TASK)])
def test_an_own_part_that_lacks_nothing(package: str, text: str, write_part: Callable[[str], Path]) -> None:
    file = write_part(text)
    assert type(registry.create(package, "mine")).__module__ == file.stem


def test_an_argument_of_an_unknown_type(write_part: Callable[[str], Path]) -> None:
    part = "    def __init__(self, *, rate: Annotated[float] = 1.0): ...\n"
    file = write_part(f"from __future__ import annotations\n{OBJECTIVE}{part}")
    with pytest.raises(UserError) as caught:
        registry.schema.__wrapped__(OBJECTIVES, "mine")
    said = "class Objective has an argument of an unknown type: name 'Annotated' is not defined; import the type"
    assert caught.value.line() == f"{file}: {said}"


def test_a_dropped_in_verb_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stages" / "newverb").mkdir(parents=True)
    (tmp_path / "stages" / "newverb" / "spec.py").write_text("")
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    assert registry.stages.__wrapped__() == {"newverb": "compress.stages.newverb"}


def test_the_service_that_registered_models_import_is_still_found() -> None:
    """MLflow models that version 0.1 registered hold `from compress.serving import Service`."""
    from compress.predict import service
    from compress.serving import Service

    assert Service is service.Service


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"spec.py": "Specs = 1"}, "spec.py: the file has no class Spec; the spec.py of a stage needs one"),
        ({"spec.py": "class Spec: ..."}, "stages/bare: no stage.py in this folder"),
        ({"spec.py": "class Spec: ...", "stage.py": ""}, "stage.py: the file has no class Stage; "),
    ],
)
def test_a_stage_folder_that_lacks_a_class(
    files: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"bare{len(files)}_{len(''.join(files.values()))}"
    folder = tmp_path / package
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "stages", lambda: {"bare": package})
    look_up = registry.stage_class if files["spec.py"].startswith("class") else registry.stage_spec
    with pytest.raises(UserError) as error:
        look_up("bare")
    assert message in error.value.line()
