"""What stages state of themselves, and that a run names none of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from compress import registry
from compress.contracts import StageSpec
from compress.run.results import ChainState

ROOT = Path(__file__).parents[2]
KINDS = sorted(path.parent.name for path in (ROOT / "compress" / "stages").glob("*/spec.py"))


def kinds_where(trait: str, value: Any = True) -> set[str]:
    return {kind for kind in KINDS if getattr(registry.stage_spec(kind), trait) == value}


def test_a_run_names_no_kind_of_stage() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}: '{node.value}' (state a trait in the kind's spec.py instead)"
        for file in sorted((ROOT / "compress" / "run").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in KINDS
    ]
    assert not wrong, "\n".join(wrong)


def test_what_each_kind_states() -> None:
    assert kinds_where("makes", "tokenizer") == {"tokenizer"}
    assert kinds_where("compresses", False) == {"tokenizer", "pretrain", "finetune"}
    assert kinds_where("for_task", False) == {"tokenizer", "pretrain"}
    assert kinds_where("learns") == {"distill"}
    assert kinds_where("reads_teacher") == {"distill", "prune_width"}
    assert kinds_where("writes_onnx") == {"export"}
    assert kinds_where("timed") == {"drop_tokens", "prune_layers", "prune_width", "prune_vocab", "factorize"}


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_a_trait_names_are_there(kind: str) -> None:
    spec = registry.stage_spec(kind)
    assert issubclass(spec, StageSpec)
    assert set(spec.timed_by) <= set(spec.model_fields)
    assert spec.timed or not spec.timed_by


def test_a_stage_says_what_it_starts_from() -> None:
    training, objectives = {"steps": 2}, [{"kind": "hard_labels"}]
    distill = {"kind": "distill", "level": "task_specific", "objectives": objectives, "training": training}
    of = registry.stage_spec("distill").model_validate
    assert of(distill).starts_from() == "input"
    assert of({**distill, "student": {"layers": [0]}}).starts_from() == "teacher"
    own = of({**distill, "student": {"model": "m"}})
    assert (own.starts_from(), own.checkpoint(), own.checkpoints()) == ("checkpoint", "m", ("m",))
    assert own.trains()
    assert own.answers_task()
    assert not of({**distill, "level": "general"}).answers_task()


def test_the_machine_decides_only_where_a_stage_is_timed() -> None:
    of = registry.stage_spec("prune_layers").model_validate
    assert of({"kind": "prune_layers", "target_latency": 2.0}).depends_on_machine()
    assert not of({"kind": "prune_layers", "drop": 1}).depends_on_machine()


def test_a_tokenizer_takes_no_models_place() -> None:
    from compress.contracts import StageResult

    made = ChainState(model=Path("m")).add_stage(
        0, "0-tokenizer", registry.stage_spec("tokenizer").model_validate({"kind": "tokenizer"}),
        StageResult(Path("t"), 0, 0.0, {}, {}),
    )  # fmt: skip
    assert (made.model, made.tokenizer, made.last) == (Path("m"), Path("t"), None)
