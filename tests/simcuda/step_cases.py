"""Training steps of every objective: with a head and labels that it can read, models and batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compress import registry
from compress.contracts import QUERIES, Batch, Teacher
from compress.data.batches.examples import pack
from compress.data.batches.paired import BESIDE, CommonSpans, TeacherBatch
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.modules.model import Model
from compress.stages.distill.aligned import AlignedModule, AlignedTeacher
from compress.training.module import StageModule

Size = Mapping[str, int]
SMALL: Size = {"vocabulary": 64, "hidden": 32, "heads": 4, "feed_forward": 64, "max_positions": 32}
BERT_BASE: Size = {"vocabulary": 30522, "hidden": 768, "heads": 12, "feed_forward": 3072, "max_positions": 512}


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


def _queries(batch: Batch) -> Batch:
    return replace(_scores(batch), extra={QUERIES: torch.arange(batch.rows) // 4})


def _replaced(batch: Batch) -> Batch:
    return replace(batch, extra={"replaced": (torch.arange(batch.tokens) % 7 == 0).float()})


def _of_two_tokenizers(batch: Batch) -> Batch:
    """The teacher has a piece more in each row; two pieces of the student are a common span."""
    lengths = batch.cu_seqlens.diff()
    beside = build_batch((lengths + 1).numpy(), int(batch.input_ids.max()) + 1)
    counts = (lengths + 1) // 2
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ours = batch.position_ids // 2 + bounds[:-1].repeat_interleave(lengths)
    theirs = torch.minimum(beside.position_ids // 2, (counts - 1).repeat_interleave(lengths + 1))
    theirs = theirs + bounds[:-1].repeat_interleave(lengths + 1)
    begins = torch.searchsorted(ours, torch.arange(int(bounds[-1])))
    spans = CommonSpans(ours, theirs, begins, bounds, int(counts.max()))
    return replace(_classes(batch), extra={BESIDE: TeacherBatch(beside, spans)})


_CLASSES = HeadConfig("classification", labels=3)
_WORDS = HeadConfig("masked_lm")
_SCORE = HeadConfig("classification", labels=1, problem="regression")
_SOFT, _HARD = {"kind": "soft_targets"}, {"kind": "hard_labels"}


@dataclass(frozen=True)
class Case:
    """objectives: kind and keys of each.  head: of both models.  label: gives batches what the objectives read.
    module: what trains; an `AlignedModule` has a teacher with its own tokenizer."""

    objectives: Sequence[dict[str, Any]]
    head: HeadConfig = _CLASSES
    label: Callable[[Batch], Batch] = _classes
    module: type[StageModule] = StageModule

    def build_model(self, size: Size, layers: int, dropout: float) -> Model:
        config = EncoderConfig.uniform(
            **size,
            layers=layers,
            dropout=dropout,
            attention_dropout=dropout,
            pooler=self.head.kind in ("classification", "sentence_pair"),
        )
        return Model(config, {self.head.name: self.head})

    def build_module(self, teacher: Model, student: Model, prepared: Teacher) -> StageModule:
        """The student and its objectives, each student layer at the end of as many of the teacher's.

        prepared: the teacher as it answers.
        """
        stride = teacher.config.depth // student.config.depth
        pairs = tuple((s, stride * (s + 1) - 1) for s in range(student.config.depth))
        objectives = {}
        for number, row in enumerate(self.objectives):
            keys = {name: value for name, value in row.items() if name != "kind"}
            made = registry.load("compress.objectives", row["kind"])(**keys)
            made.bind(ModelPair(student.config, teacher.config, pairs))
            objectives[f"{row['kind']}{number}"] = (1.0, made)
        return self.module(student, objectives, AlignedTeacher(prepared) if self.module is AlignedModule else prepared)


def build_batch(lengths: Sequence[int] | np.ndarray, vocabulary: int) -> Batch:
    """Rows of these lengths, whose ids count up."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    zeros = np.zeros(total, dtype=np.uint8)
    ids = 5 + np.arange(total) % (vocabulary - 5)
    return pack(ids, offsets, segments=zeros, special=zeros > 0, row_ids=np.arange(len(lengths)))


CASES = {
    "task": Case([_SOFT, _HARD]),
    "tags": Case([_SOFT, _HARD], HeadConfig("token_classification", labels=3), _tags),
    "answer spans": Case([_SOFT, _HARD], HeadConfig("question_answering"), _spans),
    "scores": Case([_SOFT, _HARD], _SCORE, _scores),
    "multi-label": Case([_SOFT, _HARD], HeadConfig("classification", labels=3, problem="multi_label"), _several),
    "DistilBERT": Case(
        [{"kind": "soft_targets", "on": "vocabulary"}, {"kind": "masked_lm"}, {"kind": "cosine_hidden"}],
        _WORDS,
        _masked,
    ),
    "TinyBERT": Case([{"kind": "attention_maps"}, {"kind": "hidden_mse"}, {"kind": "embeddings"}], _WORDS, _masked),
    "attention KL": Case([{"kind": "attention_maps", "distance": "kl"}]),
    "sentence pairs": Case([{"kind": "sentence_pair"}], HeadConfig("sentence_pair"), _pairs),
    "vectors": Case([{"kind": "vectors"}], HeadConfig("embedding", labels=SMALL["hidden"])),
    "vector similarity": Case([{"kind": "vector_similarity"}], HeadConfig("embedding", labels=SMALL["hidden"])),
    "documents of queries": Case([{"kind": "listwise_kl"}, {"kind": "margin_mse"}], _SCORE, _queries),
    "replaced tokens": Case([{"kind": "replaced_token"}], HeadConfig("replaced_token"), _replaced),
    "two tokenizers": Case([_SOFT, {"kind": "hidden_mse"}], label=_of_two_tokenizers, module=AlignedModule),
}
_covered = {row["kind"] for case in CASES.values() for row in case.objectives}
CASES |= {kind: Case([{"kind": kind}]) for kind in registry.parts("compress.objectives") if kind not in _covered}
"""Every objective is in one, by itself where no other case has it."""
