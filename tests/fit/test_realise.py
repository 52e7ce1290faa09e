"""Plans of encoders of every build, made: of the size that was planned, answering, and written where that is asked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.console import Console
from compress.data.reading.sources import open_table
from compress.data.tasks import task_of
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.statistics import RIDGE
from compress.encoder.integers.fake_quantized import list_quantized_modules, set_mode
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import OUTPUTS, KeptUnits, prune_units
from compress.fit.cost import block_table as blocktable
from compress.fit.cost import cost_model
from compress.fit.cost.cost_model import Costs
from compress.fit.cost.serving import FEW_BITS, FLOAT, Bits, Serving, content, quantize_to_bits
from compress.fit.loss import curves, study
from compress.fit.loss.row_answers import answers
from compress.fit.loss.study import Student, as_json
from compress.fit.make import build
from compress.fit.make.build import Maker
from compress.fit.make.candidates import Candidates
from compress.fit.make.evaluator import Evaluation, Evaluator, Timing
from compress.fit.plan.forecast import plan_within_budget
from compress.fit.plan.planner import TOGETHER, Planner
from compress.fit.plan.plans import Plan, Space
from compress.fit.plan.search import MARGIN, MORE, Search
from compress.fit.request.bounds import Bounds
from compress.modelfolder.folder import DataNote, FolderMeta, inspect, load_model, save_model
from compress.stages.prune_width.obs import Moments
from compress.stages.prune_width.selection import find_highest
from compress.stages.shared.divergence import divergence
from evaluation.cost.latency import Latency

GOOD, BAD = ("good", "fine"), ("bad", "poor")
BUILDS: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "albert": {"layer_groups": (0, 0, 0), "embedding": 16},
    "modernbert": {
        "norm": "pre", "first_norm": False, "gated": True, "bias": False, "positions": "rotary", "segments": 0,
        "rotary_bases": (1e4, 1e3, 1e4), "windows": (None, 4, None),
    },
    "gte": {"gate_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1e3, 1e3, 1e3)},
    "nomic_bert": {"linear_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1e3, 1e3, 1e3)},
}  # fmt: skip
KINDS: Mapping[str, tuple[HeadConfig, tuple[str, ...]]] = {
    "classification": (HeadConfig("classification", labels=2), ("negative", "positive")),
    "regression": (HeadConfig("classification", labels=1, problem="regression"), ()),
    "token-classification": (HeadConfig("token_classification", labels=2), ("NOUN", "OTHER")),
}


def rows(kind: str) -> list[dict[str, Any]]:
    made = []
    for number in range(24):
        word = (GOOD + BAD)[number % 4]
        text = f"the {'film' if number % 3 else 'plot'} was {word} {'and ' * (number % 5)}"
        if kind == "token-classification":
            words = text.split()
            made.append({"tokens": words, "tags": ["NOUN" if w in ("film", "plot") else "OTHER" for w in words]})
        else:
            right = "positive" if word in GOOD else "negative"
            made.append(
                {"text": text, "label": right} if kind == "classification" else {"text": text, "score": number / 7}
            )
    return made


class Case:
    """One toy, studied."""

    def __init__(self, folder: Path, tokenizer: dict[str, bytes], vocabulary: int, build: str, kind: str) -> None:
        torch.set_num_threads(1)
        head, names = KINDS[kind]
        shape = EncoderConfig.uniform(
            vocabulary=vocabulary, hidden=32, layers=3, heads=2, feed_forward=24, max_positions=32
        )
        config = dataclasses.replace(shape, **BUILDS[build])
        model = Model(config, {"task": head}).initialize(3).eval()
        meta = FolderMeta(task=kind, label_names=names, language=("en",))
        save_model(folder / "model", model, tokenizer_files=tokenizer, meta=meta)
        self.loaded = load_model(folder / "model", require={"task"}, keep={"task"})
        for split in ("train", "validation", "test"):
            path = folder / "data" / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows(kind)))
        (folder / "data" / "info.json").write_text('{"language": "zh"}')
        self.table = open_table(str(folder / "data"), task=kind, expect_labels=names or None)
        self.serving = Serving("onnxruntime", length=16)
        self.task = task_of(self.table.task)
        self.student = Student(self.loaded, self.task, self.table, self.serving, 24, 0, lambda: None, lambda _: None)
        self.study = self.student.study(joins=True)
        self.blocks = blocktable.measure(self.loaded.config, self.loaded.heads, self.serving)
        self.space = Space(self.study, self.blocks)
        self.maker = Maker(self.student, self.space, lambda: None)


@pytest.fixture(scope="module", autouse=True)
def timeless() -> Iterator[None]:
    """Blocks take what their place says: nothing is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocktable, "_least", lambda calls, *_: ([1.0 + 0.1 * i for i in range(len(calls))], False))
        yield


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> Case:
    """Read by all tests of one build."""
    folder = tmp_path_factory.mktemp("plain")
    return Case(folder, toy_tokenizer_files, len(toy_vocabulary), "bert", "classification")


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=30),
    st.dictionaries(st.integers(1, 29), st.floats(0, 5), min_size=1, max_size=4),
)
def test_a_curve_goes_through_what_was_measured(falls: list[float], found: dict[int, float]) -> None:
    curve = np.concatenate([np.cumsum(falls)[::-1], [0.0]])
    found = {count: loss for count, loss in found.items() if count < len(falls)} or {0: 1.0}
    made = curves.through(curve, found)
    assert made[-1] == 0
    assert np.all(np.diff(made) <= 0), "never more with more"
    at = sorted(found)
    for one, count in enumerate(at):
        lower = all(found[count] >= found[other] for other in at[one:])
        if lower and np.all(made[count:] <= found[count] * (1 + 1e-9)):
            assert made[count] == pytest.approx(found[count], abs=1e-12)


def test_what_rounding_a_part_loses_is_the_same_as_in_the_whole_model(
    plain: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = plain.student
    monkeypatch.setattr(study, "EVEN", -1.0)
    found = student._matrices(4)
    made = quantize_to_bits(plain.loaded.model, Bits({"encoder.layers.*": 4}, FLOAT, FLOAT), plain.serving)
    assert list(found) == [(part, unit) for part in OUTPUTS for unit in range(3)]
    for (part, unit), loss in found.items():
        start = f"encoder.layers.{unit}.{part}."
        set_mode(made, lambda name, start=start: "quantized" if name.startswith(start) else "float")
        half = student.compared[: -(-len(student.compared) // 2)]
        assert loss == divergence(made, student.known, half, student.on)


@pytest.mark.thorough
def test_what_parts_lose_is_measured_with_their_matrix_fitted(plain: Case) -> None:
    student, model, config = plain.student, plain.loaded.model, plain.loaded.config
    assert student.compute_kl_to_parent(student.ready) == 0, "the model that was measured in is as it was"
    for part, found in (("attention", plain.study.heads), ("feed_forward", plain.study.neurons)):
        for layer, curve in enumerate(found):
            assert curve[-1] == 0
            assert np.all(np.diff(curve) <= 0)
            most = len(curve) - 1
            needed = (plain.study.scores.heads if part == "attention" else plain.study.scores.neurons)[layer]
            count = max(1, most // 2)
            every = KeptUnits.everything(config)
            kept = [list(every.heads), list(every.neurons)]
            kept[part != "attention"][layer] = find_highest(needed, count)
            made = prune_units(model, KeptUnits(tuple(kept[0]), tuple(kept[1])))
            ours = getattr(getattr(made.encoder.layers[layer], part), OUTPUTS[part])
            theirs = getattr(getattr(model.encoder.layers[layer], part), OUTPUTS[part])
            inputs = _inputs(student, theirs)
            wide = inputs.shape[1] // most
            at = [i * wide + j for i in find_highest(needed, count) for j in range(wide)]
            _solve(ours, inputs[:, at], inputs @ theirs.weight.double().T + theirs.bias.double())
            moments = Moments()
            moments.add(inputs)
            fitted = curves._refitted(theirs, torch.tensor(at), moments)
            torch.testing.assert_close(fitted.weight[:, at], ours.weight, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(fitted.bias, ours.bias, rtol=1e-4, atol=1e-5)
            assert int((fitted.weight != 0).any(0).sum()) == len(at)
            # the toy hardly minds, and KL of single precision has a floor
            assert curve[count] == pytest.approx(student.compute_kl_to_parent(prepare(made)), rel=0.05, abs=1e-6), (
                part,
                layer,
            )


def _inputs(student: Student, module: torch.nn.Module) -> torch.Tensor:
    """(T, n) of what a matrix reads on the studied rows."""
    found: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: found.append(given[0].flatten(0, -2).double()))
    with torch.no_grad():
        for batch in student.batches:
            student.loaded.model(batch)
    hook.remove()
    return torch.cat(found)


def _solve(module: Any, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Ridge regression towards what is there, written out as one over more rows."""
    x = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], 1)
    second = x.T @ x
    size, before = len(second), torch.cat([module.weight, module.bias[:, None]], 1).detach().double()
    strength = RIDGE * size / len(x) * float(second.diagonal().mean())
    rows = torch.cat([x, strength**0.5 * torch.eye(size, dtype=torch.float64)])
    wanted = torch.cat([targets, strength**0.5 * before.T])
    found = torch.linalg.lstsq(rows, wanted).solution.T
    with torch.no_grad():
        module.weight.copy_(found[:, :-1])
        module.bias.copy_(found[:, -1])


def test_as_many_rows_are_studied_as_have_enough_tokens(plain: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    train = plain.table.split("train")
    every = len(plain.student.encode_rows(train, plain.student.tokenizer).ids)
    monkeypatch.setattr(study, "ROWS", (4, 20))
    found = {}
    for tokens in (1, every // 3, 10**6):
        monkeypatch.setattr(study, "TOKENS", tokens)
        rows, examples = plain.student._studied(train)
        assert len(rows) == len(examples)
        found[tokens] = len(rows)
    few, some, many = found.values()
    assert (few, many) == (4, 20)
    assert few < some < many
    monkeypatch.setattr(study, "ROWS", (4, 2000))
    assert len(plain.student._studied(train)[0]) == len(train)


OTHERS = [("albert", "regression"), ("modernbert", "token-classification"), ("nomic_bert", "classification")]
"""Each build and each kind once; `plain` is a bert that classifies."""


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "kind"), OTHERS)
def test_plans_of_other_builds_and_kinds(
    build: str, kind: str, tmp_path: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> None:
    check_plans(Case(tmp_path, toy_tokenizer_files, len(toy_vocabulary), build, kind), tmp_path)


def test_plans_are_made_of_the_size_that_was_planned(plain: Case, tmp_path: Path) -> None:
    check_plans(plain, tmp_path)


def check_plans(case: Case, tmp_path: Path) -> None:
    # Layers that share matrices are told in the graph each by itself, which the table of blocks does not know.
    near = 0.004 if case.loaded.config.layer_groups is None else 0.012
    whole = case.space.plan_whole_model(8)
    made, files = case.maker.model(whole, case.serving)
    assert len(content(made)) / 1e6 == pytest.approx(whole.mb, abs=near)
    assert files["tokenizer.json"] == case.loaded.tokenizer_files["tokenizer.json"]
    problem = case.space.problem()
    least, most = problem.lower_bounds[1], whole.mb
    plans = [case.space.plan(c) for c in Planner(problem, mb=least + 0.5 * (most - least)).choose_diverse(3)]
    assert plans
    assert plans[0].mb < whole.mb
    for plan in plans:
        made, _ = case.maker.model(plan, case.serving)
        assert made.config.depth == len(plan.layers)
        assert made.config.vocabulary == plan.rows
        assert len(content(made)) / 1e6 == case.maker.megabytes(plan, case.serving)
        assert case.maker.megabytes(plan, case.serving) == pytest.approx(plan.mb, abs=2.5 * near)
        assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
        assert plan.sentence(case.loaded.config)
    note = DataNote(name="toy", fingerprint="0")
    folder = case.maker.write(plans[0], case.serving, tmp_path / "made", note)
    assert inspect(folder).meta.method == "fit"
    assert inspect(folder).meta.language == ("zh",), "that of the data, not of the parent"
    evaluator = Evaluator(
        case.loaded, case.serving, case.table.split("validation"), task=case.table.task, settings={}, max_length=24
    )
    if case.study.joins:
        check_joined(case, tmp_path, near)
    judged = evaluator.evaluate("plan 1", plans[0], folder, 0.0)
    assert judged.mb == (folder / "model.onnx").stat().st_size / 1e6
    assert judged.apart >= 0
    assert json.dumps(as_json(case.study))


def check_joined(case: Case, tmp_path: Path, near: float) -> None:
    """Neighbours that share their matrices: of the size that was planned, written, and one copy in the file."""
    assert [join.first for join in case.study.joins] in ([0], [1], [0, 1])
    assert all(join.loss >= 0 for join in case.study.joins)
    problem, config = case.space.problem(), case.loaded.config
    alone = dataclasses.replace(problem, layers=[dataclasses.replace(x, drop=None) for x in problem.layers])
    firsts = []
    for number, run in enumerate(problem.runs):
        layers: list[tuple[int, int] | None] = [(len(x.attention) - 1, len(x.feed_forward) - 1) for x in alone.layers]
        layers[run.first : run.first + 2] = [TOGETHER] * 2
        firsts.append(case.space.plan(alone.of(layers, 0, [(number, 0)])))
        for option, bits in enumerate(case.space._joins[number][2]):
            plan = case.space.plan(alone.of(layers, 0, [(number, option)]))
            assert plan.joined == (run.first,)
            assert plan.heads == tuple(shape.heads for shape in config.layers)
            joint = plan.attention_bits[run.first], plan.feed_forward_bits[run.first]
            assert joint == bits == (plan.attention_bits[run.first + 1], plan.feed_forward_bits[run.first + 1])
            assert f"layers {run.first} and {run.first + 1} share parameters" in plan.sentence(config)
            assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
            assert case.maker.megabytes(plan, case.serving) == pytest.approx(plan.mb, abs=2.5 * near)
    plan = firsts[-1]
    assert case.maker.needs_narrowing(plan)
    gone, pair = (0, (1, 2)) if plan.joined == (1,) else (2, (0, 1))
    heads, neurons = (tuple(0 if i == gone else n for i, n in enumerate(x)) for x in (plan.heads, plan.neurons))
    cut = dataclasses.replace(plan, layers=pair, heads=heads, neurons=neurons)
    note = DataNote(name="toy", fingerprint="0")
    for one in (plan, cut) if gone or config.first_norm else (plan,):
        folder = case.maker.write(one, case.serving, tmp_path / f"joined-{len(one.layers)}", note)
        sharing = inspect(folder).config.sharing
        assert sharing is not None
        three = (0, 1, 1) if plan.joined == (1,) else (0, 0, 1)
        assert sharing.attention == sharing.feed_forward == (three if len(one.layers) == 3 else (0, 0))
    start = tmp_path / "start"
    case.maker.save_narrow(plan, start, note)
    trained = load_model(start, keep={"task"}).model
    assert content(case.maker.model(plan, case.serving, narrow=trained)[0]) == content(
        case.maker.model(plan, case.serving)[0]
    )


def test_layers_that_go_are_made_good_by_those_after_them(plain: Case) -> None:
    model, kept = plain.loaded.model, (0, 2)
    fitted = plain.maker.narrow(kept, case_counts(plain))
    bare = plain.maker.narrow(kept, case_counts(plain), fitted=False)
    examples = plain.student.encode_rows(plain.student.train, plain.student.tokenizer)
    whole, near, far = (answers(prepare(m), examples, "cpu") for m in (model, fitted, bare))
    assert np.square(near - whole).mean() < 0.5 * np.square(far - whole).mean()


def test_a_probe_that_cuts_nothing_leaves_the_model_alone(plain: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    refitted: list[Any] = []
    monkeypatch.setattr(build, "refit_all", lambda cuts, *_: refitted.extend(cuts))
    counts = case_counts(plain)
    whole, cut = plain.maker._cut((0, 1, 2), counts), plain.maker._cut((0, 2), counts)
    assert whole.made is plain.loaded.model
    plain.maker._refit([whole, cut])
    assert refitted == [cut]


def case_counts(plain: Case) -> Any:
    from compress.stages.prune_width.costs import Counts

    return Counts.of(plain.loaded.config)


def test_losses_of_probes_bend_what_layers_lose(plain: Case) -> None:
    scales = plain.maker.scales()
    assert scales.drops > 0
    bent = Space(plain.study, plain.blocks, 2.0, scales)
    assert bent.plan_whole_model(8).ms == pytest.approx(2 * plain.space.plan_whole_model(8).ms)
    assert bent.problem().shape == scales.shape


def test_which_plans_are_tried(plain: Case) -> None:
    whole = plain.space.plan_whole_model(8)
    quality = Search([plain.space], Bounds(max_mb=0.9 * whole.mb), whole, 3)
    assert 0 < len(quality.forecast()) <= 3
    first = quality.next()
    assert first is not None
    assert quality.skip(first, 2 * whole.mb)
    second = quality.next()
    assert second is None or second.key != first.key
    assert not quality.skip(whole, 2 * whole.mb), "the model in 8 bits is always made"
    smallest = Search([plain.space], Bounds(max_drop=1.0), whole, 3)
    plan = smallest.next()
    assert plan is not None
    assert plan.mb < whole.mb
    assert smallest.forecast()
    family = Search([plain.space], Bounds(max_mb=whole.mb), whole, 4, family=True)
    members = family.forecast()
    assert 1 < len(members) <= 4
    assert len({m.key for m in members}) == len(members)


def test_a_forecast_shows_plans_within_the_budget_alone(plain: Case) -> None:
    whole = plain.space.plan_whole_model(8)
    bound = 0.9 * whole.mb

    def exact(plan: Plan) -> float:
        return 1.02 * plan.mb

    search = Search([plain.space], Bounds(max_mb=bound), whole, 3)
    assert any(exact(plan) > bound for plan in search.forecast()), "plans use the budget up"
    found = plan_within_budget(search, exact)
    assert found
    assert all(mb == exact(plan) <= bound for plan, mb in found)
    assert plan_within_budget(Search([plain.space], Bounds(max_mb=bound), whole, 3), lambda plan: 2 * whole.mb) == []
    free = Search([plain.space], Bounds(max_drop=1.0), whole, 3)
    assert [plan for plan, _ in plan_within_budget(free, exact)] == free.forecast()


def test_the_next_plan_is_aimed_by_what_the_last_ones_took(plain: Case) -> None:
    whole = plain.space.plan_whole_model(8)
    plan = dataclasses.replace(whole, vocabulary="another", ms=2.0)
    search = Search([plain.space], Bounds(max_ms=2.0), whole, 3)

    def took(plan: Plan, ms: float) -> None:
        search.tried.append(judged(plan, ms))

    assert search.slowdown == 1.0
    took(whole, 0.8 * whole.ms)
    assert search.slowdown == pytest.approx(0.8)
    took(plan, 2.2)
    assert search.slowdown == pytest.approx(1.1), "plans tell more about plans than the whole model does"
    assert search.limits()[0] == pytest.approx(MARGIN * 2.0 / 1.1)
    took(dataclasses.replace(plan, vocabulary="a third"), 20.0)
    assert search.slowdown == 1.5


def judged(plan: Plan, ms: float) -> Evaluation:
    ours, parent = (Latency(p50, p50, p50, p50, 50, 1.0, 0.0) for p50 in (ms, 20.0))
    return Evaluation("a plan", plan, Path("plan"), plan.mb, Timing.of(ours, parent), 0.9, 0, -1, 1, 0.1, 1.0)


def test_more_plans_are_made_until_one_is_within_the_budgets(plain: Case) -> None:
    whole = plain.space.plan_whole_model(8)
    bound = 1.2 * whole.ms
    search = Search([plain.space], Bounds(max_ms=bound), whole, 1)
    search.tried.append(judged(whole, 1.1 * bound))
    aimed = []
    while (plan := search.next()) is not None:
        aimed.append(search.limits()[0])
        search.tried.append(judged(plan, 1.1 * bound))
    assert 1 < len(search.tried) - 1 <= 1 + MORE, "the one that was asked for came out too slow"
    assert aimed[-1] < aimed[0] or search.slowdown == 1.5, "each is aimed by what the others took"
    del search.tried[2:]
    assert search.next() is not None
    search.tried[-1] = judged(search.tried[-1].plan, 0.9 * bound)
    assert search.next() is None, "as many as were asked for, and one is within"


def test_two_real_models_correct_what_is_planned(plain: Case) -> None:
    costs = Costs(plain.serving, plain.blocks, "table")
    costs.correct((10.0, 9.0), (4.0, 4.2))
    assert (costs.factor, costs.extra) == pytest.approx((0.8, 1.0))
    for narrow in ((9.9, 1.0), (4.0, 3.0), (4.0, 9.5)):  # too near to tell, faster than nothing, slower than the whole
        costs.correct((10.0, 9.0), narrow)
        assert (costs.factor, costs.extra) == (0.9, 0.0)
    space = Space(plain.study, plain.blocks, 0.8, extra=1.0)
    before, after = plain.space.plan_whole_model(8), space.plan_whole_model(8)
    assert after.ms == pytest.approx(0.8 * before.ms + 1.0)
    least = plain.space.problem().lower_bounds[0], space.problem().lower_bounds[0]
    assert least[1] == pytest.approx(0.8 * least[0] + 1.0)


def test_the_table_is_kept_and_read(plain: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    config, heads = plain.loaded.config, plain.loaded.heads
    first, path = blocktable.table(config, heads, plain.serving, Console(quiet=True))
    monkeypatch.setattr(blocktable, "measure", None)
    assert blocktable.table(config, heads, plain.serving, Console(quiet=True)) == (first, path)


def test_the_whole_model_in_few_bits(plain: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 8 bits are over the bound, 3 and 2 bits are made, and the file is as large as it is said."""
    space, whole = plain.space, plain.space.plan_whole_model(8)
    maker: Any = SimpleNamespace(  # a toy in 8 bits is the smallest
        megabytes=lambda plan, serving: 50.0 if plan is whole else plain.maker.megabytes(plan, serving)
    )
    assert list(FEW_BITS) == [3, 2]
    least = [
        plain.maker.megabytes(space.in_few_bits(whole, b, plain.study.vocabularies[0]), plain.serving) for b in (3, 2)
    ]
    clock = SimpleNamespace(check=lambda: None, late=lambda _: False)
    for bound, wanted in ((max(least), [3, 2]), (None, []), (99.0, [])):
        case: Any = SimpleNamespace(bounds=Bounds(max_mb=bound, max_ms=9), clock=clock)
        bench: Any = SimpleNamespace(whole=whole, maker=maker, serving=plain.serving, space=space)
        search = SimpleNamespace(tried=[])
        one = Candidates(case, bench, SimpleNamespace(path=tmp_path), search)  # type: ignore[arg-type]
        monkeypatch.setattr(one, "_judged", lambda plan, place: judged(plan, 4.0))
        one.make_few_bits()
        assert [j.plan.word for j in search.tried] == wanted
        for j in search.tried:
            assert bound is not None
            assert j.plan.mb <= bound
            model = plain.maker.model(j.plan, plain.serving)[0]
            assert len(content(model)) / 1e6 == pytest.approx(j.plan.mb)
            assert {q.weight_quantizer.scheme.bits for q in list_quantized_modules(model).values()} == {j.plan.word, 8}


def test_floats_stay_floats(plain: Case) -> None:
    assert quantize_to_bits(plain.loaded.model, Bits.uniform(FLOAT), plain.serving) is plain.loaded.model
    torch_alone = Serving("torch")
    assert torch_alone.bits == torch_alone.table_bits == (FLOAT,)


def test_plans_with_static_input_ranges(plain: Case, tmp_path: Path) -> None:
    """Their matrices take a share of the time, lose more, and are rounded in a range that training texts gave."""
    whole = plain.space.plan_whole_model(8)
    saved = 0.1 * (whole.ms - plain.space.problem().lower_bounds[0])
    static = plain.space.with_static_ranges(whole.ms - saved, 0.6)
    fixed = static.plan_whole_model(8)
    assert (fixed.ranges, fixed.mb) == ("static", whole.mb)
    assert fixed.ms == pytest.approx(whole.ms - saved)
    assert fixed.loss == pytest.approx(whole.loss + 0.6)
    assert static.plan_whole_model(FLOAT).ms == plain.space.plan_whole_model(FLOAT).ms, "floats are not rounded"
    free = plain.space.with_static_ranges(0.0, -0.1).plan_whole_model(8)
    assert (free.ms > 0, free.loss) == (True, whole.loss), "nothing is won by rounding"
    assert fixed.key != whole.key
    assert whole.key == Plan.from_json({k: v for k, v in whole.as_json().items() if k != "ranges"}).key
    assert Plan.from_json(json.loads(json.dumps(fixed.as_json()))) == fixed
    assert fixed.sentence(plain.loaded.config) == f"{whole.sentence(plain.loaded.config)}; static input ranges"
    smallest = min(plain.study.vocabularies, key=lambda v: v.rows)
    for plan in (fixed, dataclasses.replace(fixed, vocabulary=smallest.name, rows=smallest.rows)):
        folder = plain.maker.write(plan, plain.serving, tmp_path / plan.key, DataNote(name="toy", fingerprint="0"))
        rounded = inspect(folder).config.quantization
        assert rounded is not None
        assert {part.input.kind for part in rounded.of().values() if part.input is not None} == {"mse"}
        operators = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
        assert "ReduceMax" not in operators, "no scale for each token"
        size = (folder / "model.onnx").stat().st_size
        # A number that two ranges share is stored once.
        assert size == pytest.approx(1e6 * plain.maker.megabytes(plan, plain.serving), abs=1000)


def test_the_ranges_that_lose_less_within_the_bounds_are_chosen(plain: Case) -> None:
    whole = plain.space.plan_whole_model(8)
    least = plain.space.problem().lower_bounds[0]
    bounds = Bounds(max_ms=least + 0.5 * (whole.ms - least))
    faster, worse = (plain.space.with_static_ranges(0.5 * whole.ms, loss) for loss in (0.0, 1e3))
    cheap, dear = (Search([plain.space, static], bounds, whole, 3) for static in (faster, worse))
    alone = Search([plain.space], bounds, whole, 3)
    assert {plan.ranges for plan in cheap.forecast()} == {"static"}
    assert cheap.forecast()[0].loss < alone.forecast()[0].loss
    assert [plan.key for plan in dear.forecast()] == [plan.key for plan in alone.forecast()]
    assert cheap.lower_bounds[0] <= alone.lower_bounds[0] == least
    free = Search([plain.space, faster], Bounds(max_mb=whole.mb), whole, 3)
    assert {plan.ranges for plan in free.forecast()} == {"per-token"}, "nothing asks for speed"


def test_a_fit_that_goes_on_plans_with_what_it_measured(plain: Case, tmp_path: Path) -> None:
    how = {"batch": 1, "length": plain.serving.length, "device": "cpu", "texts": None}
    table = cost_model.name_table(plain.loaded.config, plain.loaded.heads, plain.serving)
    timing = judged(plain.space.plan_whole_model(8), 4.0).timing
    for static in (cost_model.StaticRanges(3.0, 0.01), None):
        Costs(plain.serving, plain.blocks, table, 0.8, 1.0, timing, static).write(tmp_path)
        found = cost_model.of(plain.loaded, None, how, tmp_path, Console(quiet=True))
        assert (found.static, found.factor, found.timing) == (static, 0.8, timing)
    content = json.loads((tmp_path / cost_model.FILE).read_text())
    del content["static"]  # of an earlier version
    (tmp_path / cost_model.FILE).write_text(json.dumps(content))
    assert cost_model.of(plain.loaded, None, how, tmp_path, Console(quiet=True)).static is None
