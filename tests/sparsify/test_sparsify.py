"""2:4 sparsity: the pattern holds whatever the method, the reconstruction is least squares, training leaves zeros."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compress import registry
from compress.cli._flags import resolve
from compress.contracts import Batch, MatrixStatistics, PartRow, RunOptions, SparseMethod, TrainingPlan
from compress.data.tables.random_rows import draw_mixed_rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.sharing import Sharing
from compress.encoder.config.sparsity import SPARSITY
from compress.encoder.infer import semi_structured as semistructured
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.semi_structured import prepare_sparse
from compress.encoder.infer.statistics import inputs as inputs_of
from compress.encoder.modules.masks import is_semi_structured, mask_of, require_pattern, sparse_parts
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.modelfolder.private import FILE
from compress.predict.fastest import require_same_answers
from compress.predict.predictor import Predictor, build_fixed_batch
from compress.stages.distill.initialization import Origin, initialize_student
from compress.stages.distill.student_spec import StudentSpec
from compress.stages.sparsify import conversion
from compress.stages.sparsify.flags import TABLE
from compress.stages.sparsify.methods.reconstruct import prune_by_obs, refit_weights
from compress.stages.sparsify.stage import METHODS
from compress.training.optimizer import Optimizer

KINDS = list(registry.parts(METHODS))
CONFIG = EncoderConfig.uniform(vocabulary=40, hidden=16, layers=2, heads=2, feed_forward=32, max_positions=16)
HEADS = {"task": HeadConfig("classification", labels=2)}


def method(kind: str) -> SparseMethod:
    return registry.load(METHODS, kind)()


def seen(out: int, inputs: int, *, mean: bool = True, seed: int = 0) -> tuple[MatrixStatistics, Tensor]:
    """A matrix and what it was seen to read, (T, in): correlated, uneven, not centred."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(300, inputs, generator=random).double() @ torch.randn(inputs, inputs, generator=random).double()
    x = x * torch.linspace(0.05, 2, inputs).double() + torch.randn(inputs, generator=random).double()
    weight = torch.randn(out, inputs, generator=random).double()
    return MatrixStatistics(weight, x.T @ x / len(x), x.mean(0) if mean else None), x


def parent(config: EncoderConfig = CONFIG) -> Model:
    return Model(config, HEADS).initialize(3).eval()


def batches(model: Model) -> list[Batch]:
    return [build_fixed_batch(model.config, rows, 9) for rows in (5, 8, 8)]


def sparse(model: Model, kind: str = "reconstruct") -> Model:
    return conversion.convert(
        model, conversion.sparsify_matrices(model, method(kind), inputs_of(model, batches(model)))
    ).eval()


# --- methods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(out=st.integers(1, 6), fours=st.integers(1, 5), seed=st.integers(0, 10**6), mean=st.booleans())
@settings(max_examples=15)
def test_of_every_four_two_stay(kind: str, out: int, fours: int, seed: int, mean: bool) -> None:
    one, _ = seen(out, 4 * fours, seed=seed, mean=mean)
    made = method(kind)(one).weight
    assert torch.isfinite(made).all()
    assert is_semi_structured(made)
    assert (mask_of(made).unflatten(-1, (-1, 4)).sum(-1) == 2).all()
    assert (made[~mask_of(made)] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_never_are_and_equal_weights(kind: str) -> None:
    nothing = MatrixStatistics(torch.ones(3, 8).double(), torch.zeros(8, 8).double(), torch.zeros(8).double())
    made = method(kind)(nothing).weight
    assert torch.isfinite(made).all()
    assert is_semi_structured(made)
    assert (made != 0).sum() == 12


def test_magnitude_and_activation_keep_the_largest() -> None:
    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5], [0.1, 0.2, 0.3, -0.4]], dtype=torch.float64)
    second = torch.diag(torch.tensor([100.0, 1.0, 1.0, 1.0])).double()
    assert method("magnitude")(MatrixStatistics(weight, second)).weight.tolist() == [[0, -3, 2, 0], [0, 0, 0.3, -0.4]]
    assert method("activation")(MatrixStatistics(weight, second)).weight.tolist() == [[1, -3, 0, 0], [0.1, 0, 0, -0.4]]


def lost(weight: Tensor, made: Tensor, second: Tensor) -> Tensor:
    return (((weight - made) @ second) * (weight - made)).sum(1)


def best(weight: Tensor, second: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Least squares over the inputs `kept`, the others zero."""
    at = list(kept)
    made = torch.zeros_like(weight)
    made[:, at] = torch.linalg.solve(second[at][:, at], second[at] @ weight.T).T
    return made


def test_the_surgeon_finds_the_best_pair_of_four_by_brute_force() -> None:
    for seed in range(20):
        one, _ = seen(6, 4, seed=seed, mean=False)
        assert one.inputs is not None
        made, mask = prune_by_obs(one.weight, one.inputs)
        tried = [best(one.weight, one.inputs, kept) for kept in itertools.combinations(range(4), 2)]
        least = torch.stack([lost(one.weight, each, one.inputs) for each in tried]).min(0).values
        torch.testing.assert_close(lost(one.weight, made, one.inputs), least, rtol=1e-8, atol=1e-10)
        assert (made[~mask] == 0).all()


def test_what_stays_is_the_least_squares_of_its_mask() -> None:
    one, _ = seen(5, 16, mean=False)
    assert one.inputs is not None
    start, mask = prune_by_obs(one.weight, one.inputs)
    made = refit_weights(one.weight, start, mask, one.inputs, 1e-9)
    for row in range(5):
        kept = tuple(mask[row].nonzero()[:, 0].tolist())
        wanted = best(one.weight[row : row + 1], one.inputs, kept)
        torch.testing.assert_close(made[row : row + 1], wanted, rtol=1e-3, atol=1e-4)
    assert (lost(one.weight, made, one.inputs) <= lost(one.weight, start, one.inputs) + 1e-9).all()


def test_reconstruction_loses_least() -> None:
    for seed in range(5):
        one, x = seen(8, 32, seed=seed)
        assert one.mean is not None

        def missed(kind: str, one: MatrixStatistics = one, x: Tensor = x) -> float:
            made = method(kind)(one)
            left = (one.weight - made.weight) @ x.T
            return float((left - left.mean(1, keepdim=True) if made.centred else left).square().mean())

        errors = {kind: missed(kind) for kind in KINDS}
        assert errors["reconstruct"] < 0.5 * errors["activation"]
        assert errors["reconstruct"] < 0.5 * errors["magnitude"]


# --- models ---------------------------------------------------------------------------------------------------------


def test_a_model_keeps_its_other_weights_and_its_outputs_are_near() -> None:
    model = parent()
    cuts = conversion.sparsify_matrices(model, method("reconstruct"), inputs_of(model, batches(model)))
    made = conversion.convert(model, cuts).eval()
    assert len(cuts) == 12
    assert made.config.layers[0].sparse == ("attention.query", "attention.key", "attention.value", "attention.output",
                                            "feed_forward.up", "feed_forward.down")  # fmt: skip
    require_pattern(made, "here")
    changed = {name for name, p in made.named_parameters() if not torch.equal(p, model.get_parameter(name))}
    assert all(".layers." in name and "norm" not in name for name in changed)
    assert sum(name.endswith("weight") for name in changed) == 12
    assert all(0 <= each.error < 1 for each in cuts.values())


@pytest.mark.parametrize("groups", [None, (0, 0)])
def test_the_folder_says_so_and_is_a_stock_one(
    groups: tuple[int, ...] | None, tmp_path: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(CONFIG, vocabulary=len(toy_vocabulary), layer_groups=groups)
    made = sparse(parent(config))
    folder = save_model(tmp_path / "m", made, tokenizer_files=toy_tokenizer_files, meta=FolderMeta())
    assert inspect(folder).config == made.config
    assert "matrices are 2:4 sparse" in (folder / "README.md").read_text(encoding="utf-8")
    loaded = load_model(folder).model
    assert all(torch.equal(p, made.get_parameter(name)) for name, p in loaded.named_parameters())
    if groups is None:
        stock = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        assert is_semi_structured(stock.bert.encoder.layer[1].intermediate.dense.weight)
        assert json.loads((folder / FILE).read_text())[SPARSITY]["pattern"] == "2:4"


def test_a_folder_that_is_not_what_it_says_is_neither_written_nor_read(
    tmp_path: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> None:
    made = sparse(parent(dataclasses.replace(CONFIG, vocabulary=len(toy_vocabulary))))
    part = sparse_parts(made)["layer 1 feed_forward.up"]
    with torch.no_grad():
        part.weight[3, :4] = 1
    with pytest.raises(UserError, match=r"layer 1 feed_forward.up is not 2:4 sparse, but the model's config says so"):
        save_model(tmp_path / "m", made, tokenizer_files=toy_tokenizer_files)
    assert not (tmp_path / "m").exists()
    plain = Model(dataclasses.replace(made.config, layers=CONFIG.layers), HEADS)
    plain.load_state_dict(made.state_dict())
    folder = save_model(tmp_path / "plain", plain, tokenizer_files=toy_tokenizer_files)
    (folder / "manifest.json").unlink()
    for said, message in (
        (
            {"pattern": "2:4", "layers": [[], ["feed_forward.up"]]},
            r"layer 1 feed_forward.up is not 2:4 .* remove 'compre",
        ),
        ({"pattern": "2:4", "layers": [["nothing"], []]}, "'nothing' is not a matrix of a layer"),
        ({"pattern": "2:4", "layers": [[]]}, "compress_sparsity lists 1 layers: the model has 2"),
        ({"pattern": "4:8", "layers": [[], []]}, "compress_sparsity must have pattern 2:4 and layers"),
        ({"pattern": "2:4", "layers": [["feed_forward.up", "feed_forward.up"], []]}, "listed twice"),
        ({"pattern": "2:4", "layers": [{}, []]}, "sparse must be a list of matrices"),
    ):
        values = json.loads((folder / "config.json").read_text()) | {SPARSITY: said}
        (folder / "config.json").write_text(json.dumps(values))
        with pytest.raises(UserError, match=message):
            load_model(folder)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_zeros_stay_zeros_in_training_and_the_rest_is_trained_as_ever(optimizer: Any) -> None:
    made = sparse(parent()).train()
    plan = TrainingPlan(steps=9, batch_rows=4, learning_rate=1e-2, weight_decay=0.1, optimizer=optimizer)
    rule, masks = Optimizer(made, plan), {n: mask_of(p.weight) for n, p in sparse_parts(made).items()}
    start = {name: part.weight.detach().clone() for name, part in sparse_parts(made).items()}
    for step in range(4):
        rule.clear()
        loss = made(build_fixed_batch(CONFIG, 4, 7 + step)).last_hidden.square().sum(-1).sqrt().mean()
        loss = loss + sum(p.sum() for p in made.encoder.layers.parameters())
        loss.backward()
        rule.step(loss.detach())
        for name, part in sparse_parts(made).items():
            assert (part.weight[~masks[name]] == 0).all()
    for name, part in sparse_parts(made).items():
        moved = part.weight.detach() != start[name]
        assert moved[masks[name]].float().mean() > 0.95
    again = Optimizer(made, plan)
    again.load(rule.state())
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(rule.masks, again.masks, strict=True))


def test_students_of_a_sparse_model() -> None:
    """Layers that are taken bring their zeros; a student of other widths, or of random weights, has none."""
    model = sparse(parent())
    donor: Any = SimpleNamespace(model=model, config=model.config, heads=model.head_configs)
    context: Any = SimpleNamespace(say=lambda text: None, seed=0, device="cpu")

    def made(**asked: Any) -> Model:
        how = StudentSpec(**asked)
        return initialize_student(Origin(donor, how), context, "task", lambda: pytest.fail("no sample"))

    taken = made(layers=[1])
    require_pattern(taken, "here")
    assert len(sparse_parts(taken)) == 6
    assert not sparse_parts(made(layers=[1], init="random"))
    assert not sparse_parts(made(layers=[1], intermediate_size=16, init="selection"))


def test_quantizers_keep_zeros() -> None:
    weight = method("magnitude")(seen(16, 32)[0]).weight.float()
    for kind in registry.parts("compress.quantizers"):
        row: PartRow = registry.schema("compress.quantizers", kind).model_validate({"kind": kind})
        quantizer = registry.build("compress.quantizers", row)
        if getattr(quantizer.scheme, "per", "token") == "token":
            continue
        quantizer.observe(weight)
        quantizer.freeze()
        assert (quantizer(weight)[weight == 0] == 0).all(), kind


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"sparsity": "4:8"}, r"--sparsity: sparsity '4:8' is not supported: GPUs only accelerate 2:4; use 2:4"),
        ({"method": "magnitud"}, "unknown method 'magnitud'; did you mean 'magnitude'"),
        ({"steps": 3, "no_recover": True}, "nothing is trained with --no-recover"),
    ],
)
def test_flags_that_do_not_fit(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(TABLE, "sparsify", None, {**TABLE.none_given(), **wanted}, RunOptions())
    assert message.replace("\\", "") in caught.value.line()


def test_flags_are_overrides() -> None:
    given = {"sparsity": "2:4", "method": "activation", "steps": 7, "demo": True}
    options = resolve(TABLE, "sparsify", "m", {**TABLE.none_given(), **given}, RunOptions())
    said = {one.path: one.value for one in options.overrides}
    assert said["stages.0.method"] == {"kind": "activation"}
    assert (said["stages.1.training.steps"], said["stages.1.training.epochs"]) == (7, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            dataclasses.replace(CONFIG, layers=(LayerShape(1, 6, 10),) * 2),
            "no matrix of this model supports 2:4 sparsity",
        ),
        (
            dataclasses.replace(CONFIG, sharing=Sharing((0, 0), (0, 0))),
            "share matrices and also have their own parameters",
        ),
        (
            dataclasses.replace(CONFIG, layers=(LayerShape(2, 8, 32, (("feed_forward.up", 2),)),) * 2),
            "low-rank factors alr",
        ),
        (sparse(parent()).config, "2:4 sparse, and sparsifying them again would break the pattern"),
    ],
)
def test_models_that_cannot_be(config: EncoderConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        conversion.refuse(config, "here")


def test_matrices_that_the_kernels_do_not_take_stay_dense() -> None:
    config = dataclasses.replace(CONFIG, layers=(LayerShape(2, 8, 24), LayerShape(2, 8, 32)))
    assert conversion.left_dense(config) == ["0.feed_forward.up", "0.feed_forward.down"]
    made = sparse(parent(config))
    assert made.config.layers[0].sparse == conversion.list_sparse_matrices(config.layers[0], 16, gated=False)
    assert len(sparse_parts(made)) == 4 + 6


# --- the runtime ----------------------------------------------------------------------------------------------------


def test_the_predictor_holds_sparse_products_to_the_dense_answers(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    toy_tokenizer_files: dict[str, bytes],
    toy_vocabulary: list[str],
) -> None:
    made = sparse(parent(dataclasses.replace(CONFIG, vocabulary=len(toy_vocabulary), initializer_range=0.3)))
    meta = FolderMeta(task="classification", label_names=("no", "yes"))
    folder = save_model(tmp_path / "m", made, tokenizer_files=toy_tokenizer_files, meta=meta)
    with pytest.raises(UserError, match="this device does not support sparse matrix products"):
        Predictor(folder, runtime="torch-sparse")
    monkeypatch.setattr(semistructured, "skips_zeros", lambda device: True)
    monkeypatch.setattr(semistructured, "pack_semi_structured", lambda weight: weight)
    predictor = Predictor(folder, runtime="torch-sparse")
    assert predictor.computed_by == f"torch {torch.__version__}, 2:4 sparse products, packed"
    assert predictor.computed_in == "bf16"
    rows = draw_mixed_rows(len(toy_vocabulary), 16, 300)
    require_same_answers(predictor, rows, "random tokens")
    wrong = Predictor(folder, runtime="torch-sparse")
    monkeypatch.setattr(semistructured, "pack_semi_structured", lambda weight: -20 * weight)
    with pytest.raises(UserError, match=r"torch-sparse does not match the model.*use --runtime torch"):
        require_same_answers(wrong, rows, "random tokens")


def test_the_runtime_is_refused_where_nothing_skips_zeros() -> None:
    with pytest.raises(UserError) as caught:
        prepare_sparse(sparse(parent()))
    assert caught.value.line() == (
        "--runtime torch-sparse: this device does not support sparse matrix products: they need CUDA capability 8.0 or "
        "more, this is a CPU; use --runtime torch, which computes all weights as in a dense model"
    )
    with pytest.raises(UserError, match="no matrix of the model is 2:4 sparse; sparsify it first: compress sparsify"):
        prepare_sparse(parent())


def test_sparse_products_answer_as_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch packs and unpacks the matrices here as for CUTLASS; the product itself, which only GPUs have, is that of
    what was unpacked. Rows come in multiples of eight."""
    from torch.sparse import SparseSemiStructuredTensor, SparseSemiStructuredTensorCUTLASS
    from torch.sparse import _semi_structured_conversions as packing

    rows = []

    def product(self: Any, B: Tensor, *, bias: Tensor | None = None, **how: Any) -> Tensor:
        rows.append(B.shape[0 if how.get("should_transpose_dense") else 1])
        dense = packing.sparse_semi_structured_to_dense_cutlass(self.packed, self.meta)
        turned = how.get("should_transpose_dense", False)
        made = dense @ (B.t() if turned else B)
        made = made if bias is None else made + bias[:, None]
        return made.t() if turned else made

    def pack(weight: Tensor) -> Any:
        if weight.shape[0] % 32 or weight.shape[1] % 64:
            raise RuntimeError("Both dimensions must be larger or equal than and a multiple of (32, 64)")
        values, meta = packing.sparse_semi_structured_from_dense_cutlass(weight.contiguous())
        made: Any = SparseSemiStructuredTensorCUTLASS
        return made(weight.shape, values, meta, None, None, None)

    monkeypatch.setattr(SparseSemiStructuredTensor, "_PROTOTYPE_WARNING_SHOWN", True)
    SparseSemiStructuredTensorCUTLASS._load_dispatch_table()
    monkeypatch.setattr(SparseSemiStructuredTensorCUTLASS, "_mm", product)
    monkeypatch.setattr(semistructured, "pack_semi_structured", pack)
    monkeypatch.setattr(semistructured, "skips_zeros", lambda device: True)
    config = dataclasses.replace(CONFIG, hidden=64, layers=(LayerShape(2, 32, 128), LayerShape(2, 32, 80)))
    made = sparse(parent(config))
    run, dense = prepare_sparse(made), prepare(made, "bf16")
    assert (run.able, run.total) == (10, 12)  # 80 is no multiple that CUTLASS takes
    for count in (1, 3, 8):
        batch = build_fixed_batch(config, count, 5)
        torch.testing.assert_close(run(batch).last_hidden, dense(batch).last_hidden, rtol=0.05, atol=0.05)
    assert rows
    assert all(number % 8 == 0 for number in rows)
    with pytest.raises(
        UserError, match=r"does not support sparse products for any matrix of this model: Both dimensions"
    ):
        prepare_sparse(sparse(parent()))
