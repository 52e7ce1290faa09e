"""The source of a stage's teacher outputs: the live model or the cache that the recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import cast

import torch
from torch import nn

from compress.contracts import BatchSource, Needs, Objective, Teacher
from compress.data.batches.fixed_rows import get_fixed_rows
from compress.encoder.infer.prepare import DTYPES, Precision
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.distill.cache.fields import Field, Settings, fields_of
from compress.stages.distill.cache.store import Identity, TeacherCache, Work
from compress.stages.distill.cache.teacher import CachedTeacher, WordTable
from compress.stages.distill.spec import CacheSpec
from compress.stages.shared.stage import Opening, StageContext

FOLDERS = {"general": "corpus", "task_specific": "task"}
"""Level of a stage → subfolder of the cache. The names are older than those of the levels."""


@dataclass(frozen=True)
class TeacherSetup:
    """Whom the objectives ask, and what is to be done before they do. teacher None: nobody is asked."""

    teacher: Teacher | None
    opening: Opening | None = None


@dataclass(frozen=True)
class TeachingJob:
    """What a teacher is asked about. source: rows in an order.  tokenizer: sha256.  max_length: pieces of a row.

    passes: how often the training reads the rows.
    """

    level: str
    source: BatchSource
    tokenizer: str
    max_length: int
    passes: float


def set_up_teacher(
    cache: CacheSpec | None,
    context: StageContext,
    model: Model,
    fingerprint: str,
    objectives: Iterable[nn.Module],
    job: TeachingJob,
    live: Callable[[Precision], Teacher],
) -> TeacherSetup:
    """The teacher of a stage, live or from `cache`.

    model: whose layers and head teach; of several teachers the lead.  fingerprint: of all that decides the answers.
    live: makes the teacher ready in a precision. Raises UserError for rows that change with the epoch, and for a cache
    of something else.
    """
    needs = [n for o in objectives if (n := cast(Objective, o).teacher_needs) is not None]
    if not needs:
        return TeacherSetup(None)
    if cache is None:
        return TeacherSetup(live(context.precision))
    rows = get_fixed_rows(job.source)
    if rows is None:
        raise UserError(
            "a teacher cache needs rows that are the same in every epoch",
            where="cache",
            why="noise or dynamic masking changes them every epoch",
            do="remove noise and use masking.strategy: static, or remove the cache",
        )
    path = Path(cache.path).expanduser() / FOLDERS[job.level]
    identity = Identity(fingerprint, job.tokenizer, job.max_length, rows.fingerprint, context.precision)
    store = TeacherCache(path, identity, rows)
    wanted = reduce(or_, needs, Needs())
    fields = fields_of(wanted, model.config, model.head_configs, Settings(cache.bits, cache.top_k, store.precision))
    services = context.workshop
    held = store.hold(fields)
    if job.passes < 1 and store.missing:
        context.say(
            f"training reads only {job.passes:.2f} of the rows, but the teacher cache is filled with all of"
            " them: it only saves time if other students use it too"
        )
    dtype = DTYPES[store.precision]
    kept = CachedTeacher(model.config, held, _words(model, held, dtype), dtype)

    def opening() -> Mapping[str, float]:
        return store.fill(Work(lambda: live(store.precision), kept, context.device, context.say, services))

    return TeacherSetup(kept, opening)


def _words(model: Model, fields: Iterable[Field], dtype: torch.dtype) -> WordTable | None:
    """The last matrix of the masked-LM head, where logits are to be made of kept features."""
    if not any(field.what == "vocabulary" and field.top_k is None for field in fields):
        return None
    bias = model.heads["mlm"].bias
    assert isinstance(bias, torch.Tensor)
    return WordTable(model.encoder.embeddings.word.weight.detach().to(dtype), bias.detach().to(dtype))
