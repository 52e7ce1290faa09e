"""A prepared stage in the training loop: in a run, in the other processes of one, on a few examples."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from compress.recipe import as_before
from compress.stages.shared.stage import PreparedStage, StageContext
from compress.training.context import TrainingContext, TrainResult
from compress.training.loop import train


def build_training_context(prepared: PreparedStage, context: StageContext, **more: Any) -> TrainingContext:
    """What the loop is told of a stage. more: the other fields of `TrainingContext`, or in place of the stage's."""
    told = {
        "folder": context.folder,
        "device": torch.device(context.device),
        "precision": context.precision,
        "seed": context.seed,
        "validate": prepared.validate,
        "select": prepared.select,
        "watched": prepared.watched,
    }
    return TrainingContext(**{**told, **more})


def train_prepared(prepared: PreparedStage, told: TrainingContext) -> TrainResult:
    """Train the module of a stage that has one; raises what `train` raises."""
    assert prepared.module is not None
    assert prepared.source is not None
    assert prepared.plan is not None
    return train(prepared.module, prepared.source, prepared.plan, told)


def build_training_identity(spec: Any, context: StageContext, prepared: PreparedStage) -> dict[str, str]:
    """What must be the same for a checkpoint to be continued, and in all processes that train together."""
    stage = hashlib.sha256(
        json.dumps(as_before(spec.model_dump(mode="json"), spec.kind), sort_keys=True).encode()
    ).hexdigest()
    return {"stage": stage, "seed": str(context.seed), **prepared.identity}
