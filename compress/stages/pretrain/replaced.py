"""Replaced-token detection (ELECTRA, arXiv 2003.10555): a generator, the discriminator, and one loss over both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput
from compress.data.batches.evaluation_batches import copy_to_host
from compress.encoder.config.encoder import HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.objectives._vocabulary import logits_at
from compress.objectives.masked_lm import Objective as MaskedLM
from compress.objectives.replaced_token import LABELS
from compress.objectives.replaced_token import Objective as ReplacedToken
from compress.stages.shared.shared_pass import only_helps
from compress.training.module import Term


class ReplacedTokenModule(nn.Module):
    """A discriminator and the generator of its inputs, trained together: min L_MLM + weight * L_RTD.

    Both are in the checkpoint. Samples are drawn from torch's global generator, which is there too. The discriminator's
    loss sends no gradient into the generator: sampling has none. weight: lambda in the paper.
    """

    def __init__(self, student: Model, generator: Model, weight: float) -> None:
        super().__init__()
        self.student, self.generator, self.weight = student, generator, weight
        self.masked_lm, self.replaced_token = MaskedLM(), ReplacedToken()

    def counts(self, batch: Batch) -> dict[str, int]:
        """Masked tokens of the generator's term, all tokens of the discriminator's."""
        return {"masked_lm": self.masked_lm.count(batch), "replaced_token": self.replaced_token.count(batch)}

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Both terms of a masked batch."""
        counts = self.counts(batch)
        mlm, rtd, _, _ = self.run(batch)
        return {
            "masked_lm": Term(mlm, 1.0, counts["masked_lm"]),
            "replaced_token": Term(rtd, self.weight, counts["replaced_token"]),
        }

    def run(self, batch: Batch) -> tuple[Tensor, Tensor, EncoderOutput, Batch]:
        """Both losses of a masked batch, what the discriminator answered, and the batch that it read."""
        guess = self.generator(batch, self.masked_lm.student_needs)
        assert guess.vocabulary is not None
        mlm = self.masked_lm(guess, None, batch)
        corrupted = replace_tokens(batch, logits_at(guess.vocabulary, batch.mlm_positions))
        found = self.student(corrupted, self.replaced_token.student_needs)
        return mlm, self.replaced_token(found, None, corrupted), found, corrupted


def replace_tokens(batch: Batch, logits: Tensor) -> Batch:
    """The batch with samples of softmax(logits) (M, V) at its masked positions, and labels (T,) in `extra`.

    The sample is the argmax of the logits plus Gumbel noise. Draws from torch's global generator.
    """
    assert batch.mlm_positions is not None
    assert batch.mlm_labels is not None
    with torch.no_grad():
        scores = logits.detach().float()
        noise = torch.empty_like(scores).exponential_().clamp_min_(torch.finfo(scores.dtype).tiny).log_()
        sampled = (scores - noise).argmax(-1)
        ids = batch.input_ids.index_copy(0, batch.mlm_positions, sampled)
        wrong = (sampled != batch.mlm_labels).float()
        labels = torch.zeros(ids.shape, device=ids.device).index_copy(0, batch.mlm_positions, wrong)
    extra = {**batch.extra, LABELS: labels}
    return dataclasses.replace(batch, input_ids=ids, extra=extra, mlm_positions=None, mlm_labels=None)


def build_generator(student: Model, hidden: int, heads: int, intermediate: int, *, seed: int) -> Model:
    """A masked-LM encoder as deep as `student`, of another width, that reads the student's embedding tables.

    The tables keep their width; a projection leads to the generator's. intermediate: feed-forward size.
    """
    config = student.config
    shape = LayerShape(heads, hidden // heads, intermediate)
    own = dataclasses.replace(config, hidden=hidden, embedding=config.width, layers=(shape,) * config.depth)
    generator = Model(own, {"mlm": HeadConfig(kind="masked_lm")}).initialize(seed)
    theirs, ours = student.encoder.embeddings, generator.encoder.embeddings
    ours.word, ours.position, ours.segment = theirs.word, theirs.position, theirs.segment
    return generator


def replaced_validation(
    batches: Sequence[Batch], autocast: Callable[[], torch.autocast], seed: int
) -> Callable[[nn.Module], dict[str, float]]:
    """Figures of generator and discriminator on held-out text, with the same random numbers every time.

    mlm_loss, generator_accuracy: at masked tokens.  rtd_loss, rtd_accuracy: over all tokens.  rtd_chance: accuracy of
    calling every token original.  rtd_recall: of the replaced tokens, the share that is found.
    """

    def validate(module: nn.Module) -> dict[str, float]:
        assert isinstance(module, ReplacedTokenModule)
        if only_helps():  # each batch draws where the one before it ended
            return {}
        torch.manual_seed(seed)
        names = ("mlm", "rtd", "right", "replaced", "found")
        figures, weights = [], []
        for batch in batches:
            with autocast():
                mlm, rtd, found, corrupted = module.run(batch)
            assert found.replaced is not None
            replaced, called = corrupted.extra[LABELS] > 0, found.replaced > 0
            counted = ((called == replaced).sum(), replaced.sum(), (called & replaced).sum())
            figures += [mlm, rtd, *counted]
            weights.append((module.masked_lm.count(batch.on_host), batch.tokens, 1, 1, 1))
        rows = np.array(list(map(float, copy_to_host(figures)))).reshape(-1, len(names))
        sums = dict(zip(names, (rows * np.array(weights)).sum(0).tolist(), strict=True))
        masked, tokens = (max(1, sum(row[column] for row in weights)) for column in (0, 1))
        mlm_loss, rtd_loss = sums["mlm"] / masked, sums["rtd"] / tokens
        return {
            "pretraining_loss": mlm_loss + module.weight * rtd_loss,
            "mlm_loss": mlm_loss,
            "generator_accuracy": 1 - sums["replaced"] / masked,
            "rtd_loss": rtd_loss,
            "rtd_accuracy": sums["right"] / tokens,
            "rtd_chance": 1 - sums["replaced"] / tokens,
            "rtd_recall": sums["found"] / max(1, sums["replaced"]),
        }

    return validate
