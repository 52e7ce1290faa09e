"""What a training step costs on the simulated device: prints {case: {waits, log_waits, kernels, any_order, ..}}.

Arguments: `CASES@SERIES`: the cases, "all" or names with commas between them, at `DROPOUTxMICRO_BATCHES`, such as
all@0.1x2, or with the layers of teacher and student, such as task@0x1@12+6; without: four and two. bf16. Counted is a
step that writes no line into the log, and, for its waits, one that does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import device  # first: it loads the shim before torch
import numpy as np
import torch

from compress import registry
from compress.contracts import Batch, TrainingPlan
from compress.data.batches.examples import pack
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.training.context import NullLog, TrainingContext
from compress.training.loop import train
from compress.training.module import StageModule

# What torch has no deterministic implementation of on a GPU (`torch.use_deterministic_algorithms`) and an encoder might
# launch; `--deterministic` would end with an error.
RANDOM_ORDER = {
    "aten::bincount", "aten::cumsum", "aten::cumsum_", "aten::histc", "aten::kthvalue", "aten::median.dim",
    "aten::nll_loss2d_forward", "aten::put_", "aten::_ctc_loss", "aten::_embedding_bag",
}  # fmt: skip
VOCABULARY, HIDDEN, ROWS = 64, 32, 12
LOGGED, STEADY = 2, 1  # of the steps that are counted from 0


def _classes(batch: Batch) -> Batch:
    return replace(batch, labels=torch.arange(batch.rows) % 3)


def _tags(batch: Batch) -> Batch:
    answered = torch.arange(batch.tokens) % 4 > 0
    labels = torch.where(answered, torch.arange(batch.tokens) % 3, -100)
    return replace(batch, labels=labels, answered=answered)


def _spans(batch: Batch) -> Batch:
    return replace(batch, labels=torch.tensor([[1, 2]] * (batch.rows - 1) + [[-100, -100]]))


def _scores(batch: Batch) -> Batch:
    return replace(batch, labels=torch.linspace(0, 1, batch.rows))


def _several(batch: Batch) -> Batch:
    return replace(batch, labels=(torch.arange(batch.rows * 3).view(-1, 3) % 2).float())


def _masked(batch: Batch) -> Batch:
    positions = torch.arange(1, batch.tokens, 5)
    return replace(batch, mlm_positions=positions, mlm_labels=batch.input_ids[positions])


def _pairs(batch: Batch) -> Batch:
    return replace(batch, pair_labels=torch.arange(batch.rows) % 2)


_CLASSES = HeadConfig("classification", labels=3)


@dataclass(frozen=True)
class Case:
    """objectives: kind and keys of each.  head: of both models.  label: gives batches what the objectives read."""

    objectives: Sequence[dict[str, Any]]
    head: HeadConfig = _CLASSES
    label: Callable[[Batch], Batch] = _classes


_WORDS = HeadConfig("masked_lm")
_SOFT, _HARD = {"kind": "soft_targets"}, {"kind": "hard_labels"}
CASES = {
    "task": Case([_SOFT, _HARD]),
    "tags": Case([_SOFT, _HARD], HeadConfig("token_classification", labels=3), _tags),
    "answer spans": Case([_SOFT, _HARD], HeadConfig("question_answering"), _spans),
    "scores": Case([_SOFT, _HARD], HeadConfig("classification", labels=1, problem="regression"), _scores),
    "multi-label": Case([_SOFT, _HARD], HeadConfig("classification", labels=3, problem="multi_label"), _several),
    "DistilBERT": Case(
        [{"kind": "soft_targets", "on": "vocabulary"}, {"kind": "masked_lm"}, {"kind": "cosine_hidden"}],
        _WORDS,
        _masked,
    ),
    "TinyBERT": Case([{"kind": "attention_maps"}, {"kind": "hidden_mse"}, {"kind": "embeddings"}], _WORDS, _masked),
    "attention KL": Case([{"kind": "attention_maps", "distance": "kl"}]),
    "sentence pairs": Case([{"kind": "sentence_pair"}], HeadConfig("sentence_pair"), _pairs),
    "vectors": Case([{"kind": "vectors"}], HeadConfig("embedding", labels=HIDDEN)),
    "vector similarity": Case([{"kind": "vector_similarity"}], HeadConfig("embedding", labels=HIDDEN)),
    **{
        kind: Case([{"kind": kind}])
        for kind in ("minilm", "minilmv2", "pkd", "decoupled_kd", "contrastive", "similarity", "cka")
    },
}


class Source:
    """Rows of different lengths, in micro-batches."""

    fingerprint = "simulated"

    def __init__(self, label: Callable[[Batch], Batch], parts: int) -> None:
        self._label, self._parts = label, parts

    def steps(self, epoch: int) -> int:
        return 100

    def step(self, epoch: int, index: int) -> list[Batch]:
        return [self._label(self._batch(part)) for part in range(self._parts)]

    def _batch(self, part: int) -> Batch:
        lengths = 3 + np.arange(ROWS) // 2 + part
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        total = int(offsets[-1])
        zeros = np.zeros(total, dtype=np.uint8)
        ids = 5 + np.arange(total) % (VOCABULARY - 5)
        return pack(ids, offsets, segments=zeros, special=zeros > 0, row_ids=np.arange(ROWS))


class Steps:
    """Progress that keeps what each step recorded."""

    def __init__(self, record: device.Record) -> None:
        self._record = record
        self.done: list[device.Record] = []

    def update(self, *_: Any, **__: Any) -> None:
        seen = device.Record()
        seen.__dict__.update({name: counter.copy() for name, counter in vars(self._record).items()})
        self.done.append(seen)
        self._record.clear()


def _model(case: Case, layers: int, dropout: float) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=VOCABULARY,
        hidden=HIDDEN,
        layers=layers,
        heads=4,
        feed_forward=64,
        max_positions=32,
        dropout=dropout,
        attention_dropout=dropout,
        pooler=case.head.kind in ("classification", "sentence_pair"),
    )
    return Model(config, {case.head.name: case.head}).initialize(layers)


@dataclass(frozen=True)
class Series:
    """dropout: in both models.  parts: micro-batches of a step.  teacher, student: layers."""

    dropout: float
    parts: int
    teacher: int = 4
    student: int = 2

    @classmethod
    def parse(cls, word: str) -> Series:
        """0.1x2, or 0.1x2@12+6."""
        step, _, depths = word.partition("@")
        dropout, parts = step.split("x")
        return cls(float(dropout), int(parts), *map(int, filter(None, depths.split("+"))))


def count(case: Case, series: Series, record: device.Record) -> dict[str, Any]:
    """Figures of a steady step."""
    parts = series.parts
    teacher, student = (_model(case, layers, series.dropout) for layers in (series.teacher, series.student))
    stride = series.teacher // series.student
    pairs = tuple((s, stride * (s + 1) - 1) for s in range(series.student))
    pair = ModelPair(student.config, teacher.config, pairs)
    objectives = {}
    for number, row in enumerate(case.objectives):
        keys = {name: value for name, value in row.items() if name != "kind"}
        made = registry.load("compress.objectives", row["kind"])(**keys)
        made.bind(pair)
        objectives[f"{row['kind']}{number}"] = (1.0, made)
    module = StageModule(student, objectives, prepare(teacher.to("cuda"), "bf16"))
    source, progress = Source(case.label, parts), Steps(record)
    plan = TrainingPlan(
        steps=LOGGED + 2, batch_rows=ROWS * parts, learning_rate=1e-3, log_every=LOGGED + 1, checkpoint_every=1000
    )
    with tempfile.TemporaryDirectory() as folder:
        stop: Any = SimpleNamespace(requested=False)
        context = TrainingContext(
            folder=Path(folder),
            log=NullLog(),
            progress=cast(Any, progress),
            stop=stop,
            device=torch.device("cuda", 0),
            precision="bf16",
        )
        result = train(module, source, plan, context)
    assert result.skipped_steps == 0
    steady, logged = progress.done[STEADY], progress.done[LOGGED]
    return {
        **steady.totals(),
        "any_order": sorted(RANDOM_ORDER & steady.kernels.keys()),
        "log_waits": logged.totals()["waits"],
        "where": [f"{times} x {what}: {line}" for (what, line), times in steady.waits.most_common()],
    }


if __name__ == "__main__":
    found = {}
    with device.simulate() as recorded:
        for word in sys.argv[1:]:
            names, _, series = word.partition("@")
            for name in CASES if names == "all" else names.split(","):
                found[f"{name}, {series}"] = count(CASES[name], Series.parse(series), recorded)
    print(json.dumps(found))
