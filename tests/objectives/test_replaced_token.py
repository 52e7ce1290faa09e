"""Replaced-token detection: the loss, the sampling, the checkpoint, and the folder that transformers loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from objective_cases import batch_of
from pydantic import ValidationError

from compress.contracts import Batch, EncoderOutput, Needs, TrainingPlan
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import Stopped, UserError
from compress.objectives.replaced_token import Objective
from compress.stages.pretrain.replaced import (
    ReplacedTokenModule,
    build_generator,
    replace_tokens,
    replaced_validation,
)
from compress.stages.pretrain.spec import Spec
from compress.training.context import NullLog, TrainingContext
from compress.training.loop import train

VOCABULARY = 30


def discriminator() -> Model:
    config = EncoderConfig.uniform(
        vocabulary=VOCABULARY, layers=2, hidden=16, heads=2, feed_forward=32, max_positions=16, pad_id=0, pooler=False,
    )  # fmt: skip
    return Model(config, {"rtd": HeadConfig("replaced_token")}).initialize(3)


def pair(weight: float = 50.0) -> ReplacedTokenModule:
    student = discriminator()
    return ReplacedTokenModule(student, build_generator(student, 8, 1, 16, seed=4), weight)


def masked_batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (18,), generator=generator)
    at = torch.tensor([2, 5, 9, 14])
    labels = ids[at]
    plain = batch_of([7, 11])
    return replace(plain, input_ids=ids.index_fill(0, at, 4), mlm_positions=at, mlm_labels=labels)


def test_the_loss_is_both_terms_computed_independently() -> None:
    module, batch = pair().eval(), masked_batch(0)
    torch.manual_seed(1)
    terms = module(batch)
    vocabulary = module.generator(batch, Needs(mlm="masked")).vocabulary
    assert vocabulary is not None
    logits = vocabulary.logits()
    torch.manual_seed(1)
    corrupted = replace_tokens(batch, logits)
    assert batch.mlm_positions is not None
    assert batch.mlm_labels is not None
    original = batch.input_ids.index_copy(0, batch.mlm_positions, batch.mlm_labels)
    scores = module.student(corrupted, Needs(replaced=True)).replaced
    assert scores is not None
    p = torch.sigmoid(scores.double())
    wrong = corrupted.input_ids != original
    rtd = -torch.where(wrong, p, 1 - p).log().sum() / batch.tokens
    assert wrong.any()
    torch.testing.assert_close(terms["replaced_token"].value.double(), rtd, atol=1e-6, rtol=0)
    torch.testing.assert_close(terms["masked_lm"].value, F.cross_entropy(logits, batch.mlm_labels))
    assert {n: (t.weight, t.count) for n, t in terms.items()} == {"masked_lm": (1, 4), "replaced_token": (50, 18)}
    assert module.counts(batch) == {"masked_lm": 4, "replaced_token": 18}


def test_a_correct_guess_counts_as_original() -> None:
    batch = masked_batch(0)
    assert batch.mlm_labels is not None
    sure = F.one_hot(batch.mlm_labels, VOCABULARY) * 1e4
    corrupted = replace_tokens(batch, sure)
    assert corrupted.extra["replaced"].sum() == 0
    other = replace_tokens(batch, F.one_hot((batch.mlm_labels + 1) % VOCABULARY, VOCABULARY) * 1e4)
    assert other.extra["replaced"].nonzero().flatten().tolist() == [2, 5, 9, 14]


def test_samples_follow_the_softmax_and_the_seed() -> None:
    count = 20_000
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(count, 3)
    at = torch.arange(count)
    batch = replace(batch_of([count]), mlm_positions=at, mlm_labels=torch.zeros(count, dtype=torch.int64))
    torch.manual_seed(0)
    first = replace_tokens(batch, logits).input_ids
    torch.manual_seed(0)
    assert torch.equal(first, replace_tokens(batch, logits).input_ids)
    assert not torch.equal(first, replace_tokens(batch, logits).input_ids)
    found = first.bincount(minlength=3) / count
    torch.testing.assert_close(found, logits[0].softmax(0), atol=0.02, rtol=0)


def test_the_generator_reads_the_tables_of_the_discriminator_and_gets_no_gradient_from_it() -> None:
    module = pair()
    assert module.generator.encoder.embeddings.word.weight is module.student.encoder.embeddings.word.weight
    module(masked_batch(0))["replaced_token"].value.backward()
    own = module.generator.encoder.layers
    assert all(p.grad is None for p in own.parameters())
    assert any(p.grad is not None for p in module.student.encoder.layers.parameters())


def test_figures_stand_beside_chance_and_are_the_same_again() -> None:
    module = pair().eval()
    off = lambda: torch.autocast("cpu", enabled=False)  # noqa: E731
    validate = replaced_validation([masked_batch(0), masked_batch(1)], off, 0)
    with torch.no_grad():
        figures = validate(module)
        assert validate(module) == figures
    replaced = 8 * (1 - figures["generator_accuracy"])
    assert figures["rtd_chance"] == pytest.approx(1 - replaced / 36)
    assert figures["pretraining_loss"] == pytest.approx(figures["mlm_loss"] + 50 * figures["rtd_loss"])
    assert 0 <= figures["rtd_recall"] <= 1


def test_a_batch_without_labels_is_rejected_in_one_line() -> None:
    with pytest.raises(UserError) as error:
        Objective()(EncoderOutput(torch.zeros(3, 2), replaced=torch.zeros(3)), None, batch_of([3]))
    assert error.value.line().startswith("objective replaced_token: the batch does not say which tokens were replaced")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generator": {"size": 0.29}}, "cannot be divided among"),
        ({"generator": {"size": 0.001}}, "cannot be divided among"),
        ({"sentence_pairs": "nsp", "encoder": {"pooler": True}}, "cannot be combined with a generator"),
        ({"encoder": {"pooler": True}}, "set encoder.pooler: false"),
        ({"encoder": {"groups": 1}}, "shared layers"),
        ({"masking": {"mask": 0.0, "random": 0.5, "keep": 0.5}}, "needs masked tokens"),
    ],
)
def test_what_does_not_fit_is_rejected(changes: dict[str, dict[str, object]], said: str) -> None:
    encoder = {"hidden": 128, "heads": 8, "pooler": False} | changes.get("encoder", {})
    values = {"kind": "pretrain", "generator": {}, "training": {"steps": 1, "batch_rows": 1}, **changes}
    with pytest.raises(ValidationError, match=said):
        Spec.model_validate({**values, "encoder": encoder})


def test_a_recipe_without_a_generator_is_hashed_as_before() -> None:
    spec = Spec.model_validate({"kind": "pretrain", "encoder": {}, "training": {"steps": 1, "batch_rows": 1}})
    assert "generator" not in spec.model_dump()


@dataclass
class Source:
    """Two micro-batches a step. asked: which step asks for a stop."""

    fingerprint: str = "replaced"
    stop_at: int | None = None
    requested: str | None = None

    def steps(self, epoch: int) -> int:
        return 4

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        if index == self.stop_at:
            self.requested = "a test"
        return [masked_batch(10 * index), masked_batch(10 * index + 1)]


def fit(folder: Path, stop_at: int | None = None, resume: bool = False) -> ReplacedTokenModule:
    class Silent:
        def update(self, done: int, **figures: float | str) -> None: ...

    module, source = pair(), Source(stop_at=stop_at)
    plan = TrainingPlan(steps=4, batch_rows=4, learning_rate=1e-2, checkpoint_every=2, keep_best=False)
    context = TrainingContext(
        folder=folder, log=NullLog(), progress=Silent(), stop=source, precision="fp32", resume=resume
    )
    train(module, source, plan, context)
    return module


def test_a_stopped_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    with pytest.raises(Stopped):
        fit(tmp_path / "cut", stop_at=1)
    resumed = fit(tmp_path / "cut", resume=True)
    expected = whole.state_dict()
    assert any(name.startswith("generator.") for name in expected)
    assert [n for n, tensor in resumed.state_dict().items() if not torch.equal(tensor, expected[n])] == []
    start = pair().state_dict()
    assert not torch.equal(start["generator.encoder.layers.0.feed_forward.up.weight"],
                           expected["generator.encoder.layers.0.feed_forward.up.weight"])  # fmt: skip


def test_loss_and_scores_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from compress.modelfolder.family import load_families

    model = discriminator().eval()
    family = load_families()["electra"]
    assert family.objection(model.config, model.head_configs) is None
    values = family.config_values(model.config, model.head_configs)
    assert values["architectures"] == ["ElectraForPreTraining"]
    theirs = transformers.ElectraForPreTraining(transformers.ElectraConfig(**values)).eval()
    names = family.names(model.config, model.head_configs)
    state = {names[name]: tensor for name, tensor in model.state_dict().items()}
    theirs.load_state_dict(state, strict=True)
    ids = torch.randint(5, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1])
    batch = dataclasses.replace(batch_of([9]), input_ids=ids[0], extra={"replaced": labels.float()})
    with torch.no_grad():
        found = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels[None])
        output = model(batch, Needs(replaced=True))
    assert output.replaced is not None
    torch.testing.assert_close(output.replaced, found.logits[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(Objective()(output, None, batch), found.loss, atol=1e-5, rtol=0)
