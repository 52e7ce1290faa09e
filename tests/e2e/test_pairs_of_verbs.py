"""Every compression after every other: the folder reloads to the bit, keeps what both made, and its file answers alike.

Stages run in this process as the pipeline runs them, a first stage once for all that follow it. A pair that makes no
sense is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import e2e_toy as toy
import pytest
import torch

from compress import registry
from compress.contracts import Batch
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import encode_texts
from compress.data.tables.table import Table
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.sparsity import is_sparse
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, LoadedModel, inspect, load_model, save_model
from compress.recipe import load_recipe
from compress.recipe.schema import dump
from compress.stages.shared.labelled_data import open_table_of
from compress.stages.shared.model_shape import read_shape
from compress.stages.shared.stage import StageContext
from compress.storage import atomic
from compress.training.context import NullLog, TrainingContext
from compress.training.loop import train

pytestmark = pytest.mark.thorough

TRAINING = {"steps": 2, "batch_rows": 8, "learning_rate": 1e-3}
ANSWERS = [{"kind": "soft_targets", "on": "task"}, {"kind": "hard_labels"}]
VERBS: dict[str, dict[str, Any]] = {
    "distill": {
        "level": "task_specific",
        "student": None,
        "objectives": ANSWERS,
        "control": False,
        "training": TRAINING,
    },
    "drop_tokens": {"keep_tokens": 60},
    "factorize": {"ratio": 0.6},
    "prune_layers": {"drop": 1, "criterion": {"kind": "uniform"}, "rows": 8},
    "prune_vocab": {"size": 70, "characters": "used"},
    "prune_width": {"ratio": 0.5, "rows": 16},
    "quantize": {"scheme": "static", "rows": 16, "sensitivity": False},
    "share": {
        "pattern": {"kind": "contiguous", "groups": 1},
        "init": {"kind": "mean"},
        "residual_rank": 2,
        "embedding": {"size": 8},
    },
    "sparsify": {"method": {"kind": "reconstruct"}},
}
"""What each stage is asked for; tests/test_contracts.py sees to it that no compression is missing."""
TWICE: Mapping[str, dict[str, Any]] = {
    "prune_vocab": {"size": 65},
    "prune_width": {"ratio": None, "intermediate_size": 5},
}
"""What a verb is asked for beside that, after itself."""
REFUSED = {
    ("drop_tokens", "drop_tokens"): "drops tokens between its layers, and choosing them again",
    ("drop_tokens", "factorize"): "drops tokens between its layers, and factorizing its matrices",
    ("drop_tokens", "prune_layers"): "drops tokens between its layers, and removing layers",
    ("drop_tokens", "prune_width"): "drops tokens between its layers, and cutting heads",
    ("drop_tokens", "share"): "drops tokens between its layers, and sharing layers",
    ("factorize", "factorize"): "low-rank factors already, and factorizing it",
    ("factorize", "share"): "low-rank factors already, and sharing its layers",
    ("quantize", "factorize"): "quantized already, and factorizing it",
    ("share", "factorize"): "share matrices and also have their own parameters",
    ("quantize", "prune_layers"): "quantized already, and cutting it",
    (
        "quantize",
        "prune_vocab",
    ): "quantized already, and cutting its vocabulary",
    ("factorize", "prune_width"): "low-rank factors already, and cutting it",
    ("quantize", "prune_width"): "quantized already, and cutting it",
    ("quantize", "quantize"): "quantized already, and quantizing it again",
    ("quantize", "share"): "quantized already, and sharing its layers",
    ("share", "share"): "the embeddings are already factorized, 8 x 32",
    ("share", "sparsify"): "share matrices and also have their own parameters",
    ("factorize", "sparsify"): "low-rank factors already, and making them sparse",
    ("quantize", "sparsify"): "quantized already, and making them sparse",
    ("sparsify", "factorize"): "2:4 sparse, and factorizing it would break the pattern",
    ("sparsify", "prune_width"): "2:4 sparse, and cutting it would break the pattern",
    ("sparsify", "share"): "2:4 sparse, and sharing its layers would break the pattern",
    ("sparsify", "sparsify"): "2:4 sparse, and sparsifying them again would break the pattern",
}
"""Pairs that make no sense → what is said."""
PAIRS = [(first, second) for first in VERBS for second in VERBS]


def made_by(kind: str, before: EncoderConfig, after: EncoderConfig) -> bool:
    """Whether a model looks like what this verb makes."""
    return {
        "distill": after == before,
        "drop_tokens": after.kept_tokens is not None,
        "factorize": is_low_rank(after),
        "prune_layers": after.depth < before.depth,
        "prune_vocab": after.vocabulary < before.vocabulary,
        "prune_width": sum(s.feed_forward for s in after.layers) < sum(s.feed_forward for s in before.layers),
        "quantize": after.quantization is not None,
        "sparsify": is_sparse(after),
        "share": after.width < before.hidden and (after.sharing is not None or after.depth == 1),
    }[kind]


class Workshop:
    """A teacher, its data, and what stages make of it."""

    def __init__(self, folder: Path, files: dict[str, bytes], rows: int) -> None:
        self.folder = folder
        data = toy.write_data(folder / "data")
        config = EncoderConfig.uniform(
            vocabulary=rows, hidden=32, layers=4, heads=2, feed_forward=32, max_positions=32, initializer_range=0.3
        )
        heads = {"task": HeadConfig("classification", labels=2), "mlm": HeadConfig("masked_lm")}
        meta = FolderMeta(task="classification", label_names=("negative", "positive"))
        model = Model(config, heads).initialize(5)
        self.teacher = save_model(folder / "teacher", model, tokenizer_files=files, meta=meta)
        self.base = {"data": {"source": str(data), "max_length": 24}, "teacher": str(self.teacher)}
        self.table: Table | None = None
        self.found: dict[str, Path | UserError] = {}

    def first(self, kind: str) -> Path:
        """What the verb makes of the teacher."""
        if kind not in self.found:
            self.found[kind] = self.run(kind, self.teacher, VERBS[kind])
        made = self.found[kind]
        assert isinstance(made, Path)
        return made

    def run(self, kind: str, start: Path, asked: Mapping[str, Any]) -> Path:
        """One stage on the folder `start`, as `pipeline.Run` drives it."""
        target = self.folder / f"{len(list(self.folder.iterdir()))}-{kind}"
        target.mkdir()
        recipe_file = target / "pair.yaml"
        row = {"kind": kind, **asked}
        recipe_file.write_text(dump({**self.base, "description": "a pair", "stages": [row]}), encoding="utf-8")
        recipe = load_recipe(str(recipe_file))
        self.table = self.table or open_table_of(recipe, inspect(self.teacher))
        table = self.table
        context = StageContext(
            recipe, target, 0, "cpu", "fp32", lambda: table, lambda: pytest.fail("no corpus is read"),
            model=start, teacher=self.teacher,
        )  # fmt: skip
        stage = registry.stage_class(kind)(recipe.stages[0], context)
        teacher = read_shape(self.teacher)
        stage.plan_shape(read_shape(start), teacher, teacher)
        prepared = stage.prepare()
        if prepared.module is not None:
            still = SimpleNamespace(update=lambda done, **figures: None)
            plan = TrainingContext(
                folder=target, log=NullLog(), progress=still, stop=SimpleNamespace(requested=None), seed=0
            )
            train(prepared.module, prepared.source, prepared.plan, plan)
        finished = prepared.finish()
        assert finished.model is not None
        save_model(target / "model", finished.model, tokenizer_files=finished.files, meta=finished.meta)
        check_reloaded(target / "model", finished.model.eval())
        return target / "model"


def batches_of(loaded: LoadedModel) -> list[Batch]:
    texts = [row["text"] for row in toy.opinions()["test"][:6]]
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
    return list(evaluation_batches(encode_texts(tokenizer, texts, max_length=24), 64))


def check_reloaded(folder: Path, model: Model) -> None:
    """The folder is whole, its numbers are the model's to the bit, and so are its answers."""
    from compress.onnx.check import model_answer

    assert atomic.verify_folder(folder) == []
    loaded = load_model(folder)
    ours, theirs = model.state_dict(), loaded.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for head in ("task", "mlm"):
        if head in model.heads:
            for batch in batches_of(loaded):
                one, two = (model_answer(m, head)(batch) for m in (model, loaded.model))
                assert torch.isfinite(torch.from_numpy(one)).all()
                assert (one == two).all()


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("pairs"), toy_tokenizer_files, len(toy_vocabulary))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_one_after_the_other(first: str, second: str, workshop: Workshop, same_file: Callable[[Path], None]) -> None:
    before, between = inspect(workshop.teacher).config, inspect(workshop.first(first)).config
    assert made_by(first, before, between)
    asked = VERBS[second] | (TWICE.get(second, {}) if first == second else {})
    if (reason := REFUSED.get((first, second))) is not None:
        with pytest.raises(UserError) as refused:
            workshop.run(second, workshop.first(first), asked)
        assert reason in refused.value.line()
        return
    folder = workshop.run(second, workshop.first(first), asked)
    after = inspect(folder).config
    plain = (replace(config, quantization=None) for config in (between, after))
    assert made_by(second, *plain) or made_by(second, between, after)
    assert made_by(first, before, after) or first == "distill", "what the first made is still there"
    same_file(folder)


@pytest.fixture
def same_file() -> Callable[[Path], None]:
    """Write the folder as an ONNX file, and compare their answers as `compress export` does."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from compress.onnx.check import compute_reference, file_answer
    from compress.onnx.encoder import encode
    from compress.onnx.session import OnnxSession

    def check(folder: Path) -> None:
        loaded = load_model(folder)
        session = OnnxSession(encode(loaded.model, "task").SerializeToString())
        batches = batches_of(loaded)
        checked = compute_reference(loaded.model, "task", batches, "a toy").check(file_answer(session))
        assert checked.complaint is None

    return check
