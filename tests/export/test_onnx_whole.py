"""Quantized models of random shapes as files: each matrix and layer by itself given the model's own input, the whole
for any batch and length, and models that were cut, shared and factorized before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_onnx_encoder as floats
import test_onnx_integers as whole
from torch import Tensor, nn

from compress.contracts import LayerGroups
from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.integers.fake_quantized import list_quantized_modules
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.onnx.axes import BATCH, IDS, LENGTH, MASK
from compress.onnx.encoder import Writer, encode
from compress.onnx.graph import FLOAT, Graph, helper
from compress.onnx.session import OnnxSession
from compress.stages.share import factorization
from compress.stages.share.conversion import convert
from compress.stages.share.starts.mean import Start as Mean

HEADS = sorted(floats.HEADS)
SCHEMES = ("per-token", "per-token", "static", "lsq", "q8bert", "int4")
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "albert": {"embedding": 12, "activation": "gelu_new"},
    "distilbert": {"segments": 0, "pooler": False},
    "electra": {"embedding": 16, "pooler": False},
    "modernbert": {"norm": "pre", "first_norm": False, "bias": False, "gated": True} | floats.ROTARY,
    "deberta-v2": {"segments": 0, "pooler": False, "positions": "none", "disentangled": Disentangled(8, 20, norm=True)},
    "mpnet": {"segments": 0, "pooler": False, "position_offset": 2, "relative_bias": RelativeBias(8, 16)},
    "gte": floats.GTE,
    "nomic_bert": floats.NOMIC,
    "roberta": {"segments": 1, "position_offset": 2},
}
"""What the config of each family's folders says, sizes apart."""


def drawn(seed: int) -> Model:
    """A quantized model of one to four layers, each of a shape of its own where nothing is shared."""
    dice = random.Random(seed)
    family = sorted(FAMILIES)[seed % len(FAMILIES)]
    depth = dice.randint(1, 4)
    shared = family == "albert"
    shapes = [LayerShape(dice.randint(1, 4), 2 * dice.randint(2, 5), dice.randint(3, 50)) for _ in range(depth)]
    values = {**floats.PLAIN, **FAMILIES[family], "layers": tuple(shapes[:1] * depth if shared else shapes)}
    values["layer_groups"] = (0,) * depth if shared else None
    if family == "modernbert":
        values["rotary_bases"] = tuple(dice.choice((160.0, 10.0)) for _ in shapes)
        values["windows"] = tuple(dice.choice((None, 2, 3)) for _ in shapes)
    if family in ("gte", "nomic_bert"):
        values["rotary_bases"] = (20.0,) * depth
    heads = [h for h in HEADS if values.get("pooler", True) or h in ("none", "mlm", "tags", "questions")]
    head = dice.choice(heads)
    plain = Model(EncoderConfig(**values), {h.name: h for h in floats.HEADS[head]}).initialize(seed)
    return rounded(floats.stirred(plain), dice.choice(SCHEMES))


def rounded(plain: Model, scheme: str) -> Model:
    """With ranges of the file's own tests' rows."""
    made = quantize_model(plain, plan_quantization(QuantizationSpec.model_validate({"scheme": scheme}), plain)).eval()
    calibrate(made, [whole.packed()])
    return made


Seen = list[tuple[str, nn.Module, Tensor, Tensor]]
"""(name, module, what it was given, what it gave), all padded."""


def watched(model: Model, modules: dict[str, nn.Module], lengths: list[int]) -> tuple[Seen, Tensor]:
    """Every call of the modules on rows of these lengths, and the rows' mask."""
    seen: Seen = []

    def hook(name: str) -> Callable[..., None]:
        return lambda module, given, out: seen.append((name, module, given[0].detach(), out.detach()))

    hooks = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    given = floats.inputs(lengths)
    floats.ours(model, given)
    for one in hooks:
        one.remove()
    return seen, given["attention_mask"]


def apart(model: Model, seen: Seen, mask: Tensor, write: Callable[[Writer, int, Any], str]) -> list[np.ndarray]:
    """Of each call the file's differences (tokens, D) from the model's, as a share of its largest number: a file that
    computes every call from the model's own input. write: (writer, number of the call, module) → value."""
    graph = Graph()
    writer = Writer(model, graph)
    outputs = []
    for i, (_, module, _, y) in enumerate(seen):
        outputs.append((graph.name_value(write(writer, i, module), f"y{i}"), [BATCH, LENGTH, y.shape[-1]]))
    shapes = {f"x{i}": [BATCH, LENGTH, x.shape[-1]] for i, (_, _, x, _) in enumerate(seen)}
    given = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]
    given += [helper.make_tensor_value_info(name, 7, [BATCH, LENGTH]) for name in (IDS, MASK)]
    session = OnnxSession(graph.model_of(given, outputs, {}).SerializeToString(), threads=1)
    feed = {f"x{i}": x.numpy() for i, (_, _, x, _) in enumerate(seen)}
    found = session.infer({**feed, IDS: mask.numpy(), MASK: mask.numpy()})
    real = mask.bool().numpy()
    wanted = [y.numpy()[real] for _, _, _, y in seen]
    return [
        np.abs(left[real] - right) / max(1.0, float(np.abs(right).max()))
        for left, right in zip(found, wanted, strict=True)
    ]


def layer_of(model: Model) -> Callable[[Writer, int, Any], str]:
    """Writes the layer of a call."""
    config = model.config
    bases = config.rotary_bases or (None,) * config.depth

    def write(writer: Writer, i: int, layer: EncoderLayer) -> str:
        base = bases[i]
        turn = None if base is None else writer.rotation(base, config.layers[i].head_width)
        return writer.layer(f"x{i}", layer, f"layers.{config.groups[i]}.", writer.layer_bias(i), turn)

    return write


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(18))
def test_random_models_matrix_by_matrix_layer_by_layer_and_whole(seed: int) -> None:
    model = drawn(seed)
    matrices = {n: m for n, m in list_quantized_modules(model).items() if n.startswith("encoder.layers.")}
    layers = {str(i): layer for i, layer in enumerate(model.encoder.layers)}
    file = OnnxSession(encode(model, next(iter(model.heads), None)).SerializeToString(), threads=1)
    for lengths in ([24, 1, 7], [5]):
        seen, mask = watched(model, dict(matrices), lengths)
        assert len(seen) == 6 * model.config.depth
        for difference in apart(model, seen, mask, lambda w, i, m: w.linear(f"x{i}", m, f"{i}.")):
            assert difference.max() <= 1e-5
        # Within a layer, rounding in fp32 may move a number over the middle between two codes: few tokens have it.
        seen, mask = watched(model, layers, lengths)
        for difference in apart(model, seen, mask, layer_of(model)):
            assert np.quantile(difference.max(-1), 0.9) <= 1e-5
        assert whole.close(model, file, lengths)


def composed(how: str) -> Model:
    """A model of four layers, made smaller in one way or in all of them."""
    config = EncoderConfig(**{**floats.PLAIN, "layers": (LayerShape(4, 8, 48),) * 4})
    model = floats.stirred(Model(config, {h.name: h for h in floats.HEADS["classification"]}).initialize(3))
    if "cut" in how:
        model = take_layers(model, [0, 3])
    if "shared" in how:
        groups = (0, 0, 1, 1)[: model.config.depth]
        model = convert(model, LayerGroups(groups, groups), Mean(), residual_rank=3)
    if "factorized" in how:
        model = factorization.apply(model, factorization.factorize(model, None, size=10))
    return model.eval()


@pytest.mark.parametrize("scheme", ["per-token", "static", "int4"])
@pytest.mark.parametrize("how", ["cut", "shared", "factorized", "cut, shared and factorized"])
def test_models_made_smaller_before(how: str, scheme: str) -> None:
    model = rounded(composed(how), scheme)
    file = OnnxSession(encode(model, "task").SerializeToString(), threads=1)
    for lengths in ([24, 1, 7, 16], [5]):
        assert whole.close(model, file, lengths)
