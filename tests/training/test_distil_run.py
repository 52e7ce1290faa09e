"""The loop with the real encoder and DistilBERT's triple loss, in bf16: it learns, and it continues bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_toy import Flag, context, prints, split, toy_batch, weights_print

from compress.contracts import Batch, TrainingPlan
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import Stopped
from compress.objectives import cosine_hidden, masked_lm, soft_targets
from compress.training.loop import train
from compress.training.module import StageModule

PLAN = TrainingPlan(steps=8, learning_rate=1e-2, checkpoint_every=3, log_every=1, warmup=0, schedule="constant")


def model(layers: int, seed: int) -> Model:
    config = EncoderConfig.uniform(vocabulary=40, layers=layers, heads=2, hidden=16, feed_forward=32)
    return Model(config, {"mlm": HeadConfig(kind="masked_lm")}).initialize(seed)


class Masked:
    """The same rows at every step, other pieces masked; two micro-batches."""

    fingerprint = "masked"

    def __init__(self, flag: Flag | None = None, at: int = -1) -> None:
        self.flag, self.at = flag, at

    def steps(self, epoch: int) -> int:
        return 4

    def step(self, epoch: int, index: int) -> list[Batch]:
        if self.flag is not None and 4 * epoch + index == self.at:
            self.flag.requested = "SIGTERM"
        return [self._mask(batch, 4 * epoch + index) for batch in split(toy_batch(5, rows=12), [7])]

    @staticmethod
    def _mask(batch: Batch, step: int) -> Batch:
        chosen = torch.rand(batch.tokens, generator=torch.Generator().manual_seed(step)) < 0.3
        chosen[0] = True
        hidden = torch.where(chosen, 3, batch.input_ids)
        return replace(
            batch, input_ids=hidden, mlm_positions=chosen.nonzero()[:, 0], mlm_labels=batch.input_ids[chosen]
        )


def stage() -> StageModule:
    objectives = {
        "soft_targets": (5.0, soft_targets.Objective(on="vocabulary")),
        "masked_lm": (2.0, masked_lm.Objective()),
        "cosine_hidden": (1.0, cosine_hidden.Objective()),
    }
    return StageModule(model(1, seed=1), objectives, prepare(model(2, seed=2), "bf16"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_distillation_run_continues_bit_for_bit(precision: str, tmp_path: Path) -> None:
    whole = stage()
    quiet = {"validate": None, "select": None, "precision": precision}
    told = context(tmp_path / "whole", **quiet)
    train(whole, Masked(), PLAN, told)
    losses = [values["train/loss"] for _, values in told.log.lines]
    assert losses[-1] < losses[0]

    flag = Flag()
    with pytest.raises(Stopped):
        train(stage(), Masked(flag, 4), PLAN, context(tmp_path / "cut", stop=flag, **quiet))
    resumed = stage()
    train(resumed, Masked(), PLAN, context(tmp_path / "cut", resume=True, **quiet))
    assert weights_print(resumed) == weights_print(whole)
    assert prints(tmp_path / "cut") == prints(tmp_path / "whole")
    tied = resumed.student.encoder.embeddings.word.weight
    assert tied.dtype == torch.float32
    assert sum(p is tied for p in resumed.parameters()) == 1
