"""The pretraining stage: what it plans, the shape of what it makes, and the heads and objectives of each kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.stages.pretrain import stage as module
from compress.stages.pretrain.replaced import ReplacedTokenModule
from compress.stages.pretrain.spec import Spec
from compress.stages.pretrain.stage import Stage
from compress.stages.shared.model_shape import ModelShape

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 2, "intermediate_size": 24, "max_positions": 16}
ELECTRA: dict[str, Any] = {"encoder": {**SHAPE, "pooler": False}, "generator": {"size": 0.5}}


def stage(length: int = 16, **keys: Any) -> Stage:
    spec = Spec.model_validate(
        {"kind": "pretrain", "encoder": SHAPE, "training": {"steps": 10, "learning_rate": 0.001}, **keys}
    )
    recipe = SimpleNamespace(corpus=SimpleNamespace(max_length=length))
    corpus = SimpleNamespace(fingerprint="text")
    context: Any = SimpleNamespace(
        recipe=recipe, model=None, tokenizer=Path("t"), corpus=lambda: corpus, seed=3, say=lambda _: None
    )
    return Stage(spec, context)


def test_the_plan_says_what_is_built() -> None:
    (line,) = stage().plan()
    assert line.startswith("pretrain 2 layers x 16 (2 heads, feed-forward 24) with ")
    assert line.endswith(" masked LM: 10 steps, 32 rows a step, learning rate 0.001")
    assert " masked LM + SOP: " in stage(sentence_pairs="sop").plan()[0]
    assert "24) in 2 groups of 1 with" in stage(encoder={**SHAPE, "groups": 2, "inner": 1}).plan()[0]
    assert "24) in 1 group of 2 with" in stage(encoder={**SHAPE, "groups": 1, "inner": 2}).plan()[0]
    assert " of a generator x 8 (1 heads) + 50 x replaced-token detection: " in stage(**ELECTRA).plan()[0]


def test_the_shape_is_known_before() -> None:
    made = stage().plan_shape(None, None, None)
    assert made is not None
    assert (made.depth, made.positions, made.masked_lm) == (2, 16, True)
    electra = stage(**ELECTRA).plan_shape(None, None, None)
    assert electra is not None
    assert not electra.masked_lm, "its head says which tokens were replaced"


def test_blocks_must_fit_the_encoder() -> None:
    with pytest.raises(UserError, match=r"corpus\.max_length"):
        stage(17).plan_shape(None, None, None)
    assert stage(17, block_length=16).plan_shape(None, None, None) is not None, "the stage's own length wins"


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch, toy_tokenizer_files: dict[str, bytes]) -> dict[str, Any]:
    """The toy tokenizer and batches that are never read; how the batches were asked for."""
    tokenizer = Tokenizer.from_files(toy_tokenizer_files, where="t")
    asked: dict[str, Any] = {}
    source = SimpleNamespace(steps=lambda epoch: 5, with_mask_seed=lambda seed: asked.setdefault("seed", seed))

    def corpus_batches(context: Any, tokenizer: Any, split: str, *_: Any, **how: Any) -> Any:
        asked[split] = how
        return source

    monkeypatch.setattr(module.Tokenizer, "load", lambda _: tokenizer)
    monkeypatch.setattr(module, "corpus_batches", corpus_batches)
    monkeypatch.setattr(module, "corpus_validation", lambda *_: "masked tokens")
    monkeypatch.setattr(module, "encode_validation", lambda *_: [])
    monkeypatch.setattr(module, "mask_overfitting", lambda *_: "gap")
    return asked


def test_bert(inputs: dict[str, Any]) -> None:
    made = stage(sentence_pairs="nsp", block_length=12).prepare()
    module_: Any = made.module
    assert set(module_.weights) == {"masked_lm", "sentence_pair"}
    assert set(module_.student.head_configs) == {"mlm", "pair"}
    assert {split: (how["block_length"], how["pairs"]) for split, how in inputs.items() if split != "seed"} == {
        "train": (12, "nsp"), "validation": (12, "nsp")
    }  # fmt: skip
    assert (made.select, made.validate) == (("mlm_loss", "min"), "masked tokens")
    assert inputs["seed"] == module.OTHER_MASKS + 3, "masks that no run of another seed trains on"


def test_only_masked_lm(inputs: dict[str, Any]) -> None:
    module_: Any = stage().prepare().module
    assert set(module_.weights) == {"masked_lm"}
    assert set(module_.student.head_configs) == {"mlm"}


def test_electra(inputs: dict[str, Any]) -> None:
    made = stage(**ELECTRA).prepare()
    assert isinstance(made.module, ReplacedTokenModule)
    assert set(made.module.student.head_configs) == {"rtd"}
    assert (made.select, made.closing) == (("pretraining_loss", "min"), None)
    assert "seed" not in inputs


def test_without_an_encoder_a_model_is_pretrained_further() -> None:
    training = {"steps": 10, "learning_rate": 0.001}
    spec = Spec.model_validate({"kind": "pretrain", "training": training})
    assert (spec.starts_from(), {r.form for r in spec.rejects()}) == ("input", {"static", "quantized", "drops_tokens"})
    assert Spec.model_validate({"kind": "pretrain", "encoder": SHAPE, "training": training}).starts_from() == "random"
    with pytest.raises(ValueError, match="a generator needs a new encoder; set encoder, or remove generator"):
        Spec.model_validate({"kind": "pretrain", "generator": {"size": 0.5}, "training": training})
    made = stage(encoder=None)
    assert made.plan()[0].startswith("pretrain the model further with dynamic masked LM: 10 steps")
    assert made.plan_shape(None, None, None) is None, "of a model that is not there yet"
    shape = ModelShape(3, 16, masked_lm=False, embeds=True)
    assert made.plan_shape(shape, None, None) == ModelShape(3, 16, masked_lm=True, embeds=False)
    with pytest.raises(UserError, match=r"corpus\.max_length"):
        made.plan_shape(ModelShape(3, 15), None, None)
    with pytest.raises(UserError, match="stage pretrain needs a model to start from"):
        made.prepare()


def test_a_tokenizer_is_needed() -> None:
    made = stage()
    made.context.__dict__["tokenizer"] = None
    with pytest.raises(UserError, match="stage pretrain needs a tokenizer"):
        made.prepare()
