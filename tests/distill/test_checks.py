"""Each check on a case made for it, and on the healthy case beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from compress import registry
from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.padding import IGNORED
from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.distill import diagnosis
from compress.stages.distill.checks._check import About, Check, Course, Finding, Start
from compress.stages.distill.checks.still_projections import matrices
from compress.stages.distill.diagnosis import PACKAGE, Diagnosis
from compress.stages.distill.probe import CorpusProbe, TaskProbe
from compress.stages.distill.spec import Spec
from compress.stages.shared.stage import PreparedStage
from compress.training.context import NullLog
from compress.training.module import StageModule

ROWS = 64
NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files, where="toy")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Films that are good or bad; `good` is the word that tells."""
    folder = tmp_path_factory.mktemp("films")
    words = ["the", "a", "i", "he", "she", "it", "plot", "actor"]
    rows = [
        {"text": f"{words[i % 8]} film was {word} {words[i // 8]}", "label": label}
        for i in range(ROWS)
        for word, label in (("good", "positive"), ("bad", "negative"))
    ]
    for split, part in (("train", rows), ("validation", rows), ("test", rows[:8])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in part), encoding="utf-8")
    return open_table(str(folder))


@pytest.fixture(scope="module")
def probe(table: Table, tokenizer: Tokenizer) -> TaskProbe:
    return TaskProbe(table, tokenizer, 16, "fp32", "cpu")


def knows(tokenizer: Tokenizer, scale: float = 2.0, order: tuple[int, int] = (0, 1)) -> Callable[..., EncoderOutput]:
    """A teacher that is always right. order: of its outputs."""
    good = tokenizer.encode_batch(["good"], None, max_length=8).ids[1]

    def teacher(batch: Batch, needs: Needs) -> EncoderOutput:
        rows = torch.repeat_interleave(torch.arange(batch.rows), batch.cu_seqlens.diff())
        said = torch.zeros(batch.rows).index_add(0, rows, (batch.input_ids == int(good)).float())
        logits = torch.stack([1 - 2 * said, 2 * said - 1], 1)[:, list(order)] * scale
        return EncoderOutput(last_hidden=torch.zeros(batch.tokens, 4), logits=logits)

    return teacher


def student(seed: int = 1, trained: bool = True, **changes: Any) -> Model:
    config = EncoderConfig.uniform(
        vocabulary=200, hidden=16, layers=2, heads=2, feed_forward=24, max_positions=32, dropout=0.1, **changes
    )
    model = Model(config, {"task": HeadConfig("classification", labels=2)}).initialize(seed)
    if trained:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def spec(**changes: Any) -> Spec:
    given: dict[str, Any] = {
        "kind": "distill",
        "level": "task_specific",
        "student": {"layers": [0, 1]},
        "objectives": [{"kind": "soft_targets"}, {"kind": "hard_labels", "weight": 0.5}],
        "training": {"steps": 100, "learning_rate": 5e-5},
    }
    return Spec.model_validate(given | changes)


def start(probe: Any, teacher: Any, model: Model | None = None, **changes: Any) -> Start:
    said: Spec = changes.pop("said", None) or spec()
    model = model or student()
    objectives = changes.pop("objectives", None) or {
        f"{row.kind}": (row.weight, registry.build("compress.objectives", row)) for row in said.objectives
    }
    module = StageModule(model, objectives, teacher or knows)  # pyright: ignore[reportArgumentType]
    given: dict[str, Any] = {
        "ours": probe.ask(model.eval()),
        "theirs": None if teacher is None else probe.ask(teacher),
        "projections": matrices(module.objectives),
        "steps": 100,
        "label_names": NAMES,
    }
    return Start(said, said.training, module, probe, teacher, **(given | changes))


def before(kind: str, at: Start) -> Finding | None:
    return made(kind).check_start(at)


def during(kind: str, at: Start, ours: np.ndarray, *readings: Mapping[str, float]) -> Finding | None:
    rows = readings or ({"step": 0, "probe_loss": 1.0}, {"step": 100, "probe_loss": 0.5})
    return made(kind).check_progress(Course(at, ours, rows))


def made(kind: str) -> Check:
    return registry.load(PACKAGE, kind)()


# --- what they share ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", registry.parts(PACKAGE))
def test_a_check_bears_its_file_s_name_and_looks(kind: str) -> None:
    check = made(kind)
    assert isinstance(check, Check)
    assert check.kind == kind
    assert check.about in get_args(About)
    assert {"check_start", "check_progress"} & vars(type(check)).keys()


@pytest.mark.parametrize("kind", registry.parts(PACKAGE))
def test_a_healthy_start_and_course_give_no_finding(kind: str, probe: TaskProbe, tokenizer: Tokenizer) -> None:
    healthy = start(probe, knows(tokenizer))
    assert before(kind, healthy) is None
    assert healthy.theirs is not None
    good = {"probe_loss": 1.0, "agreement": 0.5, "kl": 0.5, "probe/soft_targets": 1.0, "probe/hard_labels": 1.0}
    better = dict.fromkeys(good, 0.1) | {"agreement": 0.95}
    assert during(kind, healthy, 0.9 * healthy.theirs, {"step": 0, **good}, {"step": 100, **better}) is None


@pytest.mark.parametrize("kind", registry.parts(PACKAGE))
def test_without_a_teacher_nothing_is_said_of_one(kind: str, probe: TaskProbe) -> None:
    said = spec(objectives=[{"kind": "hard_labels"}])
    assert before(kind, start(probe, None, said=said)) is None


# --- the teacher --------------------------------------------------------------------------------------------------


def test_a_teacher_in_training_mode(probe: TaskProbe) -> None:
    model = student()
    found = before("teacher_mode", start(probe, model.train()))
    assert found is not None
    assert found.line.startswith("the teacher is not in evaluation mode: two passes over the same rows differ")
    assert before("teacher_mode", start(probe, student().eval())) is None
    assert before("teacher_mode", start(probe, prepare(student().train()))) is None, "a prepared one never drops out"


def test_a_teacher_that_guesses(probe: TaskProbe) -> None:
    found = before("teacher_quality", start(probe, student(5).eval()))
    assert found is not None
    assert found.text.startswith(
        "the teacher is no better than chance on 128 validation rows of this data: accuracy 0."
    )
    assert ", Matthews " in found.text


@pytest.mark.parametrize(("right", "rows", "found"), [(4, 8, False), (6, 8, False), (0, 8, True), (32, 64, True)])
def test_of_few_rows_a_teacher_guesses_only_where_it_is_measurably_worse(
    right: int, rows: int, found: bool, table: Table, tokenizer: Tokenizer
) -> None:
    """A good teacher may be wrong on 2 of 8 rows, whose interval says nothing of it."""
    held = table.splits["validation"].take(np.arange(rows))  # every other one of each label
    probe = TaskProbe(table, tokenizer, 16, "fp32", "cpu", held=held)
    answers = probe.ask(knows(tokenizer))
    kept = (np.arange(rows) // 2) % (rows // 2) < right // 2  # as many right of both labels
    at = replace(start(probe, knows(tokenizer)), theirs=np.where(kept[:, None], answers, -answers))
    assert probe.score_answers(at.theirs).value("accuracy") == right / rows
    assert (before("teacher_quality", at) is not None) == found


def test_a_correlation_that_is_undefined(probe: TaskProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a teacher with one answer, or of rows with one score, as a few validation rows may have."""
    scored = SimpleNamespace(metrics={"spearman": math.nan}, value=lambda name: math.nan)
    monkeypatch.setattr(probe, "score_answers", lambda theirs: scored)
    at = start(probe, student(5).eval())
    assert before("teacher_quality", at) is None
    found = before("teacher_quality", replace(at, theirs=np.full((128, 1), 2.5)))
    assert found is not None
    assert found.text == "the teacher predicts the same score for every row on 128 validation rows of this data"


def test_a_good_teacher_on_uneven_data_is_no_guesser(table: Table, tokenizer: Tokenizer) -> None:
    """Always the commonest label would be nearly as often right."""
    held = table.splits["validation"]
    rows = np.concatenate([np.flatnonzero(held.labels == 0)[:60], np.flatnonzero(held.labels == 1)[:4]])
    uneven = replace(table, splits={**table.splits, "validation": held.take(rows)})
    probe = TaskProbe(uneven, tokenizer, 16, "fp32", "cpu")
    assert before("teacher_quality", start(probe, knows(tokenizer))) is None


def test_rows_of_two_sources_with_one_number_are_two_rows(table: Table, tokenizer: Tokenizer) -> None:
    """Windows of a text stand side by side and share its number; so may a file's last row and the next one's first."""
    held = table.splits["validation"].take(np.arange(4))
    held = replace(held, numbers=np.array([1, 2, 2, 3]))
    probe = TaskProbe(replace(table, settings={"long_text": "chunk"}), tokenizer, 16, "fp32", "cpu", held=held)
    answers = probe.ask(knows(tokenizer))
    assert answers.argmax(1).tolist() == [1, 0, 1, 0]
    assert probe.compare(answers, answers[::-1])["agreement"] == 0.0
    assert probe.score_answers(answers).value("accuracy") == 1.0


def test_a_teacher_whose_labels_stand_in_another_order(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    at = start(probe, knows(tokenizer, order=(1, 0)))
    found = before("label_order", at)
    assert found is not None
    assert found.stops
    assert found.line == (
        "the label orders of teacher and data differ: 'negative' rows get 'positive', 'positive' rows get "
        "'negative'; the teacher is right on 0.0 % of 128 validation rows in the current order, on 100.0 % in this "
        "one; correct "
        "id2label in the teacher's config.json to positive, negative, or continue anyway with --set "
        "'stages.*.checks=warn'"
    )


def test_a_teacher_of_text_that_guesses() -> None:
    config = EncoderConfig.uniform(vocabulary=40, layers=1, heads=2, hidden=16, feed_forward=32)
    block = text_block()
    probe = CorpusProbe([block], 40, "fp32", "cpu")
    model = Model(config, {"mlm": HeadConfig("masked_lm")}).initialize(1).eval()
    said = spec(level="general", objectives=[{"kind": "soft_targets", "on": "vocabulary"}])
    at = start(probe, model, model, said=said, label_names=())
    assert at.theirs is not None
    worse = before("teacher_quality", replace(at, theirs=-10 * np.eye(40)[block.mlm_labels]))
    assert worse is not None
    assert worse.text.startswith(
        "the teacher is no better than chance on 12 masked tokens of held-out text: masked-LM "
    )
    assert "guessing gives 3.69" in worse.text
    assert before("teacher_quality", replace(at, theirs=10 * np.eye(40)[block.mlm_labels])) is None


def test_few_masked_tokens_do_not_tell_that_a_teacher_guesses() -> None:
    """Sure of 11 of 12 and wrong once, it has a mean loss above that of guessing."""
    config = EncoderConfig.uniform(vocabulary=40, layers=1, heads=2, hidden=16, feed_forward=32)
    block = text_block()
    assert block.mlm_labels is not None
    model = Model(config, {"mlm": HeadConfig("masked_lm")}).initialize(1).eval()
    said = spec(level="general", objectives=[{"kind": "soft_targets", "on": "vocabulary"}])
    right = 60 * np.eye(40)[block.mlm_labels]
    one_wrong = right.copy()
    one_wrong[0] *= -1
    for copies, found in ((1, False), (5, True)):
        probe = CorpusProbe([block] * copies, 40, "fp32", "cpu")
        at = start(probe, model, model, said=said, label_names=())
        answers = np.concatenate([one_wrong] * copies)
        assert probe.losses(answers).mean() > math.log(40)
        assert (before("teacher_quality", replace(at, theirs=answers)) is not None) == found


def text_block() -> Batch:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 40, (40,), generator=random)
    return Batch(
        input_ids=ids,
        segment_ids=torch.zeros_like(ids),
        position_ids=torch.arange(10).repeat(4),
        cu_seqlens=torch.arange(0, 41, 10),
        max_length=10,
        row_ids=torch.arange(4),
        mlm_positions=torch.arange(0, 36, 3),
        mlm_labels=ids[0:36:3],
    )


def test_logits_ten_times_too_large_make_hard_labels_of_soft_ones(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    found = before("logit_scales", start(probe, knows(tokenizer, scale=20.0)))
    assert found is not None
    assert (
        "its probabilities at temperature 2 are nearly hard labels: above 0.995 on 100 % of 128 validation rows"
        in found.text
    )
    assert found.do.startswith("raise the temperature, to about 14,")
    softer = spec(objectives=[{"kind": "soft_targets", "temperature": 14.0}])
    assert before("logit_scales", start(probe, knows(tokenizer, scale=20.0), said=softer)) is None


# --- the student --------------------------------------------------------------------------------------------------


def test_a_student_of_random_weights(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    found = before("random_student", start(probe, knows(tokenizer), student(trained=False)))
    assert found is not None
    assert found.text == "the student's weights are random in all layers: they were never trained"
    said = spec(student={"layers": [0, 1], "init": "random"})
    found = before("random_student", start(probe, knows(tokenizer), student(trained=False), said=said))
    assert found is not None
    assert found.text == "the student starts from random weights in all layers, as the recipe says"


def test_one_layer_of_random_weights(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    model, fresh = student(), student(trained=False)
    model.encoder.layers[1].load_state_dict(fresh.encoder.layers[1].state_dict())
    found = before("random_student", start(probe, knows(tokenizer), model))
    assert found is not None
    assert found.text == "the student's weights are random in layers 1: they were never trained"


@pytest.mark.parametrize(("times", "word"), [(10.0, "larger"), (0.1, "smaller")])
def test_student_logits_of_another_scale(times: float, word: str, probe: TaskProbe, tokenizer: Tokenizer) -> None:
    at = start(probe, knows(tokenizer))
    assert at.theirs is not None
    found = during("logit_scales", at, times * at.theirs)
    assert found is not None
    assert f"after step 100 the student's logits are 10 times {word} than the teacher's" in found.text
    early = ({"step": 0, "probe_loss": 1.0}, {"step": 5, "probe_loss": 0.9})
    assert during("logit_scales", at, times * at.theirs, *early) is None, "a new head begins small"
    assert during("logit_scales", at, np.nan * at.theirs) is None, "other checks report what is no number"
    equal = during("logit_scales", at, 0 * at.theirs)
    assert equal is not None
    assert "after step 100 the student's logits are all equal (spread 0 against" in equal.text
    hidden = spec(objectives=[{"kind": "hidden_mse"}])
    assert during("logit_scales", start(probe, knows(tokenizer), said=hidden), times * at.theirs) is None, "not trained"


def test_one_answer_for_all_rows(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    at = start(probe, knows(tokenizer))
    found = during("one_answer", at, np.tile([1.0, 0.0], (128, 1)))
    assert found is not None
    assert found.text == (
        "after step 100 the student predicts 'negative' for 100 % of 128 validation rows, the teacher for 50 %"
    )


# --- the objectives -----------------------------------------------------------------------------------------------


class Projecting(nn.Module):
    """What objectives with a projection are to the check."""

    student_needs, teacher_needs = Needs(hidden_states=True), None

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 6)
        self.choice = nn.Parameter(torch.zeros(2, 3))

    def count(self, batch: Batch) -> int:
        return batch.tokens


def moved(rate: float, decay: float = 0.0, weight: float = 1.0, steps: int = 100) -> tuple[Start, StageModule]:
    module = StageModule(student(), {"hidden_mse": (weight, Projecting())})
    said = spec(objectives=[{"kind": "hidden_mse", "weight": weight}, {"kind": "hard_labels"}])
    given = Start(
        said,
        said.training,
        module,
        None,
        None,
        np.zeros((1, 2)),
        None,
        matrices(module.objectives),
        100,  # pyright: ignore
    )
    objective = module.objectives["hidden_mse"]
    optimizer = torch.optim.AdamW(objective.parameters(), lr=rate, weight_decay=decay)
    for _ in range(steps):
        for parameter in objective.parameters():
            parameter.grad = torch.ones_like(parameter) if rate > 0 and not decay else torch.zeros_like(parameter)
        optimizer.step()
    return given, module


def test_projections_that_stand_still() -> None:
    for at, _ in (moved(0.0), moved(1e-8), moved(1e-3, decay=0.5)):
        found = during("still_projections", at, np.zeros((1, 2)))
        assert found is not None
        assert found.text == "after step 100 the projections of hidden_mse have not changed (2 of 2 matrices)"
    assert during("still_projections", moved(1e-5)[0], np.zeros((1, 2))) is None
    assert during("still_projections", moved(0.0, weight=0.0)[0], np.zeros((1, 2))) is None, "weight 0 is meant so"
    early = ({"step": 0, "probe_loss": 1.0}, {"step": 5, "probe_loss": 0.9})
    assert during("still_projections", moved(0.0)[0], np.zeros((1, 2)), *early) is None


def readings(*rows: tuple[int, float, float]) -> list[dict[str, float]]:
    return [
        {"step": step, "agreement": same, "probe_loss": loss, "probe/hard_labels": loss**2, "probe/soft_targets": loss}
        for step, same, loss in rows
    ]


def test_agreement_that_falls_while_the_loss_falls(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    at = start(probe, knows(tokenizer))
    falls = readings((0, 0.5, 1.0), (40, 0.95, 0.6), (80, 0.7, 0.3))
    found = during("falling_agreement", at, at.ours, *falls)
    assert found is not None
    assert found.text == (
        "after step 80 agreement with the teacher has fallen from 0.950 (step 40) to 0.700 on 128 validation rows, "
        "while the loss on training rows fell from 0.6 to 0.3"
    )
    assert found.do.startswith("lower the weight of hard_labels, which fell most")
    for healthy in (
        readings((0, 0.5, 1.0), (40, 0.95, 0.6), (80, 0.93, 0.3)),  # no more than the noise of 128 rows
        readings((0, 0.5, 1.0), (40, 0.95, 0.6), (80, 0.7, 0.9)),  # the loss rises too: nothing is hidden
    ):
        assert during("falling_agreement", at, at.ours, *healthy) is None


def test_objectives_that_do_not_fall(probe: TaskProbe, tokenizer: Tokenizer) -> None:
    at = start(probe, knows(tokenizer))
    rows = [
        {"step": 0, "probe_loss": 1.5, "probe/soft_targets": 1.0, "probe/hard_labels": 1.0},
        {"step": 100, "probe_loss": 0.6, "probe/soft_targets": 0.1, "probe/hard_labels": 1.01},
    ]
    found = during("standing_objectives", at, at.ours, *rows)
    assert found is not None
    assert found.text == "did not fall by 2 % in 100 steps: hard_labels (1 → 1.01)"
    alike = [{**row, "agreement": share} for row, share in zip(rows, (0.99, 0.98), strict=True)]
    assert during("standing_objectives", at, at.ours, *alike) is None, "a good start has nowhere to fall"
    alike[1]["agreement"] = 0.7
    assert during("standing_objectives", at, at.ours, *alike) is not None
    rows[1]["step"] = 50
    assert during("standing_objectives", at, at.ours, *rows) is None, "there is time left"


@pytest.mark.parametrize(("share", "read"), [(0.1, {"soft_targets"}), (0.5, {"soft_targets", "hard_labels"})])
def test_labels_of_few_training_rows_are_not_read(
    share: float, read: set[str], probe: TaskProbe, tokenizer: Tokenizer
) -> None:
    """Where one text in ten has a label, their loss says little, and makes no finding."""
    batch = probe.batches[0]
    assert batch.labels is not None
    labels = batch.labels.clone()
    labels[int(share * batch.rows) :] = IGNORED
    module = start(probe, knows(tokenizer)).module.eval()
    context: Any = SimpleNamespace(device="cpu", precision="fp32")
    assert set(diagnosis.measure_objectives(module, [replace(batch, labels=labels)], [None], context)) == read


def test_labels_that_were_matched_by_id_can_be_named_in_the_teachers_order(table: Table, tokenizer: Tokenizer) -> None:
    read = open_table(table.name, expect_labels=["LABEL_0", "LABEL_1"])
    probe = TaskProbe(read, tokenizer, 16, "fp32", "cpu")
    teacher = knows(tokenizer, order=(1, 0))
    at = start(probe, teacher)
    source: Any = FixedRows(probe.batches)
    prepared = PreparedStage(finish=lambda: pytest.fail("not run"), module=at.module, source=source, plan=at.plan)
    context: Any = SimpleNamespace(device="cpu", precision="fp32", say=lambda line: None)
    with pytest.raises(UserError) as refused:
        diagnosis._diagnosed(at.spec, context, prepared, probe, teacher, read)
    assert "the label orders of teacher and data differ" in str(refused.value)
    assert refused.value.do == "name the data's labels in the teacher's order: --set 'data.labels=[positive, negative]'"


# --- what they read -----------------------------------------------------------------------------------------------


class FixedRows:
    """A source of two batches."""

    fingerprint = ""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def steps(self, epoch: int) -> int:
        return len(self.batches)

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        return [self.batches[index]]


@pytest.mark.parametrize(("room", "times"), [(1 << 20, 1), (1, 3)])
def test_the_teacher_is_asked_once_about_the_training_rows(
    room: int, times: int, table: Table, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again at each reading where its outputs have no room; what is read is the same."""
    monkeypatch.setattr(diagnosis, "KEPT_BYTES", room)
    monkeypatch.setattr(diagnosis, "SEEN_ROWS", 2 * 8)
    asked: list[Batch] = []

    def teacher(batch: Batch, needs: Needs) -> EncoderOutput:
        asked.append(batch)
        return knows(tokenizer)(batch, needs)

    probe = TaskProbe(table, tokenizer, 16, "fp32", "cpu", rows=8)
    at = start(probe, teacher, said=spec(objectives=[{"kind": "soft_targets"}], checks="warn"))
    context: Any = SimpleNamespace(device="cpu", precision="fp32", say=lambda line: None)
    looked = Diagnosis(at, FixedRows([probe.batches[0]] * 2), context)
    module, of_probe = at.module.eval(), len(asked)
    looked.begin(NullLog())  # pyright: ignore[reportArgumentType]
    first = looked.observe(module, [{"step": 0.0}])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    second = looked.observe(module, [{"step": 5.0}])
    assert len(asked) - of_probe == 2 * times + (0 if times == 1 else 1), "the first batch is asked about before"
    assert first == {**first, **looked.first}
    fresh = diagnosis.measure_objectives(module, looked.seen, [None, None], context)
    assert second["probe/soft_targets"] == fresh["soft_targets"] != first["probe/soft_targets"]
