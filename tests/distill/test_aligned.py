"""A teacher with a tokenizer of its own: objectives on common spans, and what is refused."""

from __future__ import annotations

import foreign_tokenizers
import pytest
import torch

from compress import registry
from compress.contracts import Batch
from compress.data.batches.examples import Examples, encode_texts
from compress.data.batches.paired import PairedBatches, PairedRows, get_teacher_batch
from compress.data.batches.task_batches import TaskBatches
from compress.data.text.alignment import TokenRows, align
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.distill.aligned import AlignedModule, AlignedTeacher, on_spans
from compress.stages.distill.spec import Spec
from compress.stages.distill.two_tokenizers import check_comparable
from compress.stages.distill.tying import ProximityRegularizer
from compress.stages.distill.tying_spec import ProximitySpec
from compress.training.module import StageModule

TEXTS = [f"the {a} was {b} and I {c} it" for a in ("film", "plot") for b in ("good", "bad") for c in ("liked", "left")]
LENGTH = 32
SUPPORTED = (
    {"kind": "soft_targets"},
    {"kind": "hard_labels"},
    {"kind": "decoupled_kd"},
    {"kind": "hidden_mse"},
    {"kind": "cosine_hidden"},
    {"kind": "pkd"},
    {"kind": "minilm"},
    {"kind": "minilmv2"},
    {"kind": "contrastive"},
    {"kind": "contrastive", "rows": "first"},
    {"kind": "similarity"},
    {"kind": "similarity", "rows": "first"},
    {"kind": "cka"},
)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {f: Tokenizer(foreign_tokenizers.of_family(f, TEXTS)) for f in ("bert", "roberta", "albert")}


def model(tokenizer: Tokenizer, hidden: int, layers: int, seed: int) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=tokenizer.vocabulary_size, hidden=hidden, layers=layers, heads=2, feed_forward=32
    )
    made = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(seed).eval()
    with torch.no_grad():  # as drawn, all rows look alike to the first token
        for name, weight in made.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                weight.mul_(8)
    return made


def labelled(tokenizer: Tokenizer) -> Examples:
    examples = encode_texts(tokenizer, TEXTS, max_length=LENGTH)
    examples.labels[:] = [i % 2 for i in range(len(TEXTS))]
    return examples


def paired(first: Tokenizer, second: Tokenizer) -> PairedBatches:
    located = (TokenRows.of([t.encode_batch(TEXTS, max_length=LENGTH, spans=True)]) for t in (first, second))
    rows = PairedRows(labelled(first), labelled(second), align(*located))
    return PairedBatches(TaskBatches(rows.student, 8, 4096, 0), rows)


def objective(row: dict, student: Model, teacher: Model) -> torch.nn.Module:
    schema = registry.schema("compress.objectives", row["kind"])
    made = registry.build("compress.objectives", schema.model_validate(row))
    if hasattr(made, "bind"):
        made.bind(ModelPair(student.config, teacher.config, ((0, 0), (1, 2))))
    return made


@pytest.mark.parametrize("row", SUPPORTED, ids=lambda row: "-".join(row.values()))
def test_with_equal_tokenizers_spans_are_pieces_and_losses_and_gradients_the_same(row: dict, tokenizers) -> None:
    tokenizer = tokenizers["bert"]
    student, teacher = model(tokenizer, 16, 2, 1), model(tokenizer, 24, 3, 2)
    made, asked = objective(row, student, teacher), prepare(teacher, "fp32")
    plain = StageModule(student, {"it": (1.0, made)}, asked)
    aligned = AlignedModule(student, {"it": (1.0, made)}, AlignedTeacher(asked))
    batch = paired(tokenizer, tokenizer).step(0, 0)[0]
    results = []
    for module in (plain, aligned):
        module.zero_grad()
        assert module.counts(batch) == plain.counts(batch)
        term = module(batch)["it"]
        term.value.backward()
        gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        results.append((term.count, term.value.detach(), gradients))
    (count, value, gradients), (other_count, other_value, other_gradients) = results
    assert count == other_count
    torch.testing.assert_close(value, other_value, rtol=1e-6, atol=1e-7)
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, other_gradients[name], rtol=1e-4, atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("row", SUPPORTED, ids=lambda row: "-".join(row.values()))
@pytest.mark.parametrize("families", [("bert", "roberta"), ("albert", "bert")], ids="-".join)
def test_every_supported_objective_falls_across_tokenizers(row: dict, families: tuple[str, str], tokenizers) -> None:
    first, second = (tokenizers[family] for family in families)
    student, teacher = model(first, 16, 2, 1), model(second, 24, 3, 2)
    module = AlignedModule(
        student, {"it": (1.0, objective(row, student, teacher))}, AlignedTeacher(prepare(teacher, "fp32"))
    )
    batch = paired(first, second).step(0, 0)[0]
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=11)
    values = []
    for _ in range(12):
        term = module(batch)["it"]
        values.append(float(term.value.detach()))
        optimizer.zero_grad()
        term.value.backward()
        optimizer.step()
        rate.step()
    assert values[-1] < values[0]


@pytest.mark.parametrize("row", SUPPORTED, ids=lambda row: "-".join(row.values()))
def test_a_step_counts_what_its_terms_count(row: dict, tokenizers: dict[str, Tokenizer]) -> None:
    """Else micro-batches would add up to another multiple of their mean: here a span has three pieces of the student's.

    So do penalties of the weights."""
    first, second = tokenizers["albert"], tokenizers["bert"]
    student, teacher = model(first, 16, 2, 1), model(second, 24, 3, 2)
    pulling = ProximityRegularizer(student, ProximitySpec(groups=1))
    objectives = {"it": (1.0, objective(row, student, teacher))}
    module = AlignedModule(student, objectives, AlignedTeacher(prepare(teacher, "fp32")), [pulling]).train()
    batch = paired(first, second).step(0, 0)[0]
    assert {name: term.count for name, term in module(batch).items()} == module.counts(batch)


def test_the_mean_over_a_span_is_that_of_its_pieces(tokenizers: dict[str, Tokenizer]) -> None:
    batch = paired(tokenizers["bert"], tokenizers["roberta"]).step(0, 0)[0]
    spans = get_teacher_batch(batch).spans
    assert spans is not None
    output = model(tokenizers["bert"], 16, 2, 1)(batch)
    made = on_spans(output, spans.ours, len(spans.begins))
    for number in (0, 3, len(spans.begins) - 1):
        wanted = output.last_hidden[spans.ours == number].mean(0)
        torch.testing.assert_close(made.last_hidden[number], wanted)
    assert on_spans(output, spans.ours, len(spans.begins)).hidden_states is None


def test_a_batch_moves_with_what_it_carries(tokenizers: dict[str, Tokenizer]) -> None:
    batch: Batch = paired(tokenizers["bert"], tokenizers["roberta"]).step(0, 0)[0].to("meta")
    made = get_teacher_batch(batch)
    assert made.spans is not None
    assert {t.device.type for t in (made.batch.input_ids, made.spans.ours, made.spans.cu_seqlens)} == {"meta"}


def spec(*rows: dict, **keys: object) -> Spec:
    told = {"kind": "distill", "level": "task_specific", "objectives": list(rows), "training": {"steps": 5}}
    return Spec.model_validate({**told, **keys})


SOFT = {"kind": "soft_targets"}


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        (
            ({"kind": "attention_maps"},),
            {},
            "objective attention_maps: cannot be compared across tokenizers: the tokenizer of S is not that of T; use "
            "minilmv2, whose relations are compared on common spans",
        ),
        (
            ({"kind": "soft_targets", "on": "vocabulary"},),
            {},
            "objective soft_targets: cannot be compared across tokenizers: the tokenizer of S is not that of T; use "
            "soft_targets with on: task, or an objective of hidden states",
        ),
        (({"kind": "embeddings"},), {}, "use hidden_mse, which compares layers on common spans"),
        ((SOFT,), {"noise": {"rate": 0.1}}, "noise: noise needs one tokenizer for both"),
        ((SOFT,), {"cache": {"path": "there"}}, "cache: cache needs one tokenizer for both"),
        (({"kind": "hidden_mse"},), {"layer_map": "cka"}, "use uniform, learned or smallest"),
        (
            (SOFT,),
            {"level": "general"},
            "S: student and teacher have different vocabularies: it is not that of T, and on a corpus masked tokens "
            "are "
            "compared; start the student from this teacher, or use a teacher with the student's tokenizer; level: "
            "task_specific works with two tokenizers",
        ),
    ],
)
def test_what_only_one_tokenizer_can_give_is_refused(rows: tuple[dict, ...], keys: dict, message: str) -> None:
    asked = spec(*rows, **keys)
    built = {row["kind"]: (1.0, registry.build("compress.objectives", o)) for row, o in zip(rows, asked.objectives)}
    with pytest.raises(UserError) as error:
        check_comparable(asked, built, "S", "T")
    assert message in str(error.value)


def test_a_stage_that_asks_no_teacher_is_free(tokenizers: dict[str, Tokenizer]) -> None:
    asked = spec({"kind": "hard_labels"}, noise={"rate": 0.1})
    built = {"hard_labels": (1.0, registry.build("compress.objectives", asked.objectives[0]))}
    check_comparable(asked, built, "S", "T")
