"""The teachers of a stage as models that can be asked, and how one of several workers asks them for a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from compress.contracts import Teacher
from compress.encoder.infer.prepare import Precision, prepare
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.ensemble import EnsembleTeacher, members_in_order
from compress.modelfolder.folder import LoadedModel, load_model
from compress.stages.distill.cache.handover import HandOver
from compress.stages.distill.spec import Spec
from compress.stages.shared.stage import StageContext, require_folder


def find_general_teacher(spec: Spec, context: StageContext) -> tuple[Path, LoadedModel]:
    """The pretrained encoder that teaches on text. Raises UserError without one, or without the head that is read."""
    reads = spec.reads_vocabulary()
    what = "a pretrained encoder as teacher" + (", with a masked-LM head" if reads else "")
    folder = require_folder(context.general_teacher, what, "--general-teacher", "distill")
    return folder, load_model(folder, require={"mlm"} if reads else (), device=context.device)


def load_task_teacher(folder: Path, context: StageContext) -> LoadedModel:
    """A teacher of the task, with its head alone."""
    return load_model(folder, require={"task"}, keep={"task"}, device=context.device)


def join_teachers(lead: LoadedModel, precision: Precision, context: StageContext) -> Teacher:
    """The teacher of the task ready to be asked; where several teach, all of them as one, `lead` being their lead."""
    ready = prepare(lead.model, precision)
    ensemble = context.ensemble
    if ensemble is None:
        return ready
    context.say(ensemble.sentence())
    others = [
        (prepare(load_task_teacher(m.folder, context).model, precision), places)
        for m, places in zip(ensemble.members, members_in_order(ensemble), strict=True)
        if m is not ensemble.leader
    ]
    return EnsembleTeacher(ensemble, lead.heads["task"], ready, others)


def fingerprint_teacher(folder: Path, context: StageContext) -> str:
    """sha256 of all that decides the answers."""
    ensemble = context.ensemble
    return modelfolder.fingerprint(folder) if ensemble is None else ensemble.fingerprint


def fill_as_worker(spec: Spec, context: StageContext, handed: Path) -> None:
    """Fill the teacher cache with the shards that no other worker takes. handed: the folder of what was handed over.

    Raises UserError for a teacher that is another one meanwhile, and for answers that cannot be kept."""
    wanted = HandOver.read(handed)
    precision = wanted.identity.precision
    if spec.level == "general":
        folder, teacher = find_general_teacher(spec, context)
        live: Callable[[], Teacher] = lambda: prepare(teacher.model, precision)  # noqa: E731
        fingerprint = modelfolder.fingerprint(folder)
    else:
        folder = require_folder(context.teacher, "a teacher with a task head", "--teacher", "distill")
        lead = load_task_teacher(folder, context)
        live = lambda: join_teachers(lead, precision, context)  # noqa: E731
        fingerprint = fingerprint_teacher(folder, context)
    found = dataclasses.replace(wanted.identity, teacher=fingerprint)
    found.check(dataclasses.asdict(wanted.identity), wanted.cache)
    wanted.open(handed).make(live, context.device, context.workshop)
