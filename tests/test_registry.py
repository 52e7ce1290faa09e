"""Parts are found by file name, and their constructor is the schema."""

from __future__ import annotations

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
    with pytest.raises(TypeError, match="no type on rate"):
        registry.schema.__wrapped__(OBJECTIVES, "untyped")


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
