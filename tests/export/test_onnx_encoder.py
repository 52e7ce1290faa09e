"""Every shape, wiring and head as an ONNX file computes what the model computes."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch

from compress.contracts import EncoderOutput
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.heads import DenseShape, Pooling
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.config.sharing import Sharing
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.layout import PaddedLayout
from compress.encoder.modules.model import Model
from compress.errors import UserError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from compress.onnx.axes import VECTOR  # noqa: E402
from compress.onnx.encoder import encode  # noqa: E402
from compress.onnx.openvino_session import OpenVinoSession  # noqa: E402
from compress.onnx.runtimes import versions  # noqa: E402
from compress.onnx.session import FileSession, OnnxSession  # noqa: E402
from compress.onnx.tracing import trace_model  # noqa: E402

MISSING = pytest.mark.skipif(versions()["openvino"] is None, reason="openvino is not installed")
OPENVINO = pytest.param(OpenVinoSession, marks=(MISSING, pytest.mark.thorough))

PLAIN: dict[str, Any] = {
    "vocabulary": 61,
    "hidden": 32,
    "layers": (LayerShape(4, 8, 48),) * 3,
    "max_positions": 24,
    "initializer_range": 0.3,  # large, so that a wrong wiring cannot hide in small numbers
}
ROTARY = {"positions": "rotary", "rotary_bases": (160.0, 10.0, 10.0), "segments": 0, "pooler": False}
NOMIC = {"linear_bias": False, "gated": True, "activation": "silu", "positions": "rotary", "rotary_bases": (20.0,) * 3}
GTE = {"gate_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (20.0,) * 3}
DENSES = (DenseShape(16, tanh=True), DenseShape(8, bias=False))
LOW = (("attention.query", 3), ("attention.output", 5), ("feed_forward.up", 7), ("feed_forward.down", 6))
WIRINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "uneven": {"layers": (LayerShape(4, 8, 48), LayerShape(1, 8, 5), LayerShape(3, 6, 20))},
    "shared": {"layer_groups": (0, 1, 0)},
    "factorized": {"embedding": 12, "activation": "gelu_new"},
    "one segment, offset": {"segments": 1, "position_offset": 2, "activation": "relu"},
    "sinusoidal, no segments": {"segments": 0, "positions": "sinusoidal", "activation": "silu"},
    "pre-norm": {"norm": "pre"},
    "modernbert": {"norm": "pre", "first_norm": False, "bias": False, "gated": True, "windows": (None, 3, 2)} | ROTARY,
    "gte": GTE,
    "nomic": NOMIC,
    "residuals": {"sharing": Sharing((0, 0, 1), (0, 1, 0), residual_rank=3)},
    "shared vectors": {"sharing": Sharing((0, 0, 0), (0, 0, 0), own_vectors=False)},
    "projection first": {"embedding": 12, "project_first": True},
    "low rank": {"layers": (LayerShape(4, 8, 48), LayerShape(2, 8, 20, LOW), LayerShape(4, 8, 48, LOW[1:3]))},
    "gated, low rank": {"gated": True, "layers": (LayerShape(4, 8, 48, LOW),) * 3},
    "mpnet": {"segments": 0, "pooler": False, "position_offset": 2, "relative_bias": RelativeBias(8, 16)},
    "deberta": {"segments": 0, "pooler": False, "positions": "none", "disentangled": Disentangled(8, 20, norm=True)},
    "one product with distances": {"disentangled": Disentangled(5, content_to_position=False)},
    "biases of their own": {
        "layers": (LayerShape(4, 8, 48), LayerShape(1, 8, 5), LayerShape(3, 6, 20)),
        "relative_bias": RelativeBias(8, 16, shared=False),
    },
    "longformer": {"windows": (2, 3, 4), "global_tokens": 1, "global_projections": True},
    "longformer without global tokens": {"windows": (2, 3, 4), "global_projections": True},
    "windows with globals": {"windows": (2, None, 4), "global_tokens": 1},
}
HEADS = {
    "none": (),
    "mlm": (HeadConfig("masked_lm", activation="gelu_new"),),
    "pair": (HeadConfig("sentence_pair"),),
    "rtd": (HeadConfig("replaced_token"),),
    "classification": (HeadConfig("classification", labels=5),),
    "classification-distilbert": (HeadConfig("classification", style="distilbert"),),
    "classification-roberta": (HeadConfig("classification", style="roberta"),),
    "classification-electra": (HeadConfig("classification", style="electra"),),
    "classification-modernbert": (HeadConfig("classification", style="modernbert"),),
    "classification-deberta": (HeadConfig("classification", style="deberta"),),
    "classification-mean": (HeadConfig("classification", style="modernbert", pooling="mean"),),
    "regression": (HeadConfig("classification", labels=1, problem="regression"),),
    "tags": (HeadConfig("token_classification", labels=7),),
    "tags-modernbert": (HeadConfig("token_classification", labels=7, style="modernbert"),),
    "questions": (HeadConfig("question_answering"),),
    **{f"vectors-{how}": (HeadConfig("embedding", labels=32, pooling=how),) for how in get_args(Pooling)},
    "vectors-dense": (HeadConfig("embedding", labels=8, pooling="mean", denses=DENSES, normalize=True),),
    "vectors-cut": (HeadConfig("embedding", labels=3, pooling="mean", denses=DENSES, normalize=True, truncate=3),),
}


def model_of(wiring: str = "bert", heads: str = "none", **keys: Any) -> Model:
    config = EncoderConfig(**{**PLAIN, **WIRINGS[wiring], **keys})
    return stirred(Model(config, {h.name: h for h in HEADS[heads]}).initialize(3))


def stirred(model: Model) -> Model:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # biases and norms start at 0 and 1, where a swap would not show
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def inputs(lengths: list[int]) -> dict[str, torch.Tensor]:
    sizes, longest = torch.tensor(lengths), max(lengths)
    ids = torch.randint(1, 61, (len(lengths), longest), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(longest) < sizes[:, None]).long()
    segments = (torch.arange(longest) >= sizes[:, None] // 2).long() * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": segments}


def ours(model: Model, given: dict[str, torch.Tensor]) -> EncoderOutput:
    needs = needs_of(model.heads, pooled=model.config.pooler)
    with torch.no_grad():
        return model.forward_padded(given["input_ids"], given["attention_mask"], given["token_type_ids"], needs)


def expected(model: Model, output: EncoderOutput) -> dict[str, torch.Tensor | None]:
    if not model.heads:
        return {"last_hidden_state": output.last_hidden, "pooler_output": output.pooled}
    name = next(iter(model.heads))
    if model.head_configs[name].kind == "question_answering":
        assert output.logits is not None
        return {"start_logits": output.logits[..., 0], "end_logits": output.logits[..., 1]}
    if model.head_configs[name].kind == "embedding":
        return {VECTOR: output.logits}  # the session leaves out what sentence-transformers pools itself
    vocabulary = None if output.vocabulary is None else output.vocabulary.logits()
    return {"logits": {"mlm": vocabulary, "pair": output.pair_logits, "rtd": output.replaced}.get(name, output.logits)}


def check(
    model: Model,
    opset: int = 20,
    session_of: type[FileSession] = OnnxSession,
    write: Any = encode,
    tolerance: float = 2e-5,
) -> None:
    proto = write(model, next(iter(model.heads), None), opset=opset, notes={"compress.head": "any"})
    onnx.checker.check_model(proto, full_check=True)
    session = session_of(proto.SerializeToString(), threads=1)  # type: ignore[call-arg]
    for lengths in ([24, 1, 7, 16], [5]):
        given = inputs(lengths)
        wanted = expected(model, ours(model, given))
        feed = {name: given[name].numpy() for name in session.inputs}
        found = dict(zip(session.outputs, session.infer(feed), strict=True))
        mask = given["attention_mask"].bool().numpy()
        for name, value in wanted.items():
            if value is None:
                assert name not in found
                continue
            left, right = np.asarray(found[name]), value.detach().numpy()
            assert left.shape == right.shape
            if left.shape[:2] == mask.shape and left.ndim >= 2 and name != "pooler_output":
                left, right = left[mask], right[mask]
            assert np.abs(right).max() > 0.05
            np.testing.assert_allclose(left, right, atol=tolerance, rtol=0)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_wiring(wiring: str) -> None:
    check(model_of(wiring))


@pytest.mark.parametrize("heads", HEADS)
def test_every_head(heads: str) -> None:
    check(model_of("bert", heads))


@pytest.mark.parametrize("heads", [name for name in HEADS if HEADS[name]])
def test_a_head_that_reads_the_first_token_says_so(heads: str) -> None:
    model = model_of("bert", heads)
    name = next(iter(model.heads))
    layout, needs = PaddedLayout(torch.ones(2, 5)), needs_of(model.heads)
    state = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    other = torch.cat([state[:, :1], -state[:, 1:]], 1)
    found = [
        expected(model, model.apply_heads(EncoderOutput(last_hidden=x), layout, needs, None)) for x in (state, other)
    ]
    same = all(torch.equal(found[0][key], found[1][key]) for key in found[0])  # type: ignore[arg-type]
    assert model.head_configs[name].only_first is same


@pytest.mark.parametrize("session_of", [OnnxSession, OPENVINO])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_last_layer_computes_the_first_token_alone(wiring: str, session_of: type[FileSession]) -> None:
    model = model_of(wiring, "classification-roberta")
    check(model, session_of=session_of)
    proto = encode(model, "task")
    norms = [node.output[0] for node in proto.graph.node if node.op_type == "LayerNormalization"]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in norms)
    session = session_of(proto.SerializeToString(), threads=1)  # type: ignore[call-arg]
    given = inputs([7])
    found = session.infer({name: given[name].numpy() for name in session.inputs if name in given})
    rows = [value.shape[1] for value in found[1:] if value.ndim == 3]  # not of a table of distances
    assert rows == [7] * (len(rows) - 2) + [1, 1]


@pytest.mark.thorough
@MISSING
@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_wiring_in_openvino(wiring: str) -> None:
    check(model_of(wiring), session_of=OpenVinoSession)


@pytest.mark.thorough
@MISSING
@pytest.mark.parametrize("heads", ["mlm", "rtd", "classification", "classification-mean", "questions", "tags"])
def test_heads_in_openvino(heads: str) -> None:
    check(model_of("bert", heads), session_of=OpenVinoSession)


@pytest.mark.parametrize("wiring", ["bert", "factorized", "modernbert", "nomic"])
def test_older_opset(wiring: str) -> None:
    check(model_of(wiring), opset=17)


def test_a_masked_lm_head_reads_the_projection_backwards() -> None:
    config = EncoderConfig(**{**PLAIN, **WIRINGS["projection first"]})
    check(stirred(Model(config, {"mlm": HeadConfig("masked_lm", tied_projection=True)}).initialize(3)))


@pytest.mark.parametrize("wiring", ["shared", "residuals", "shared vectors"])
def test_shared_and_tied_tensors_are_stored_once(wiring: str) -> None:
    model = model_of(wiring, "mlm")
    proto = encode(model, "mlm")
    stored = sum(int(np.prod(t.dims)) for t in proto.graph.initializer if not t.name.startswith("constant_"))
    unused = sum(p.numel() for p in model.encoder.pooler.parameters())  # type: ignore[union-attr]
    assert stored == sum(p.numel() for p in model.parameters()) - unused


@pytest.mark.parametrize("opset", [16, 99])
def test_an_opset_out_of_range_is_refused(opset: int) -> None:
    with pytest.raises(UserError, match=f"opset {opset} is not supported") as caught:
        encode(model_of(), None, opset=opset)
    assert caught.value.do == f"use --opset {17 if opset == 16 else 22}"


def test_a_parameter_that_no_rule_writes_is_named() -> None:
    model = model_of()
    model.encoder.layers[1].attention.register_parameter("gate", torch.nn.Parameter(torch.ones(3)))  # type: ignore[union-attr]
    with pytest.raises(UserError, match="does not support") as caught:
        encode(model, None)
    assert caught.value.where == "encoder.layers.1.attention.gate"


# --- torch's exporter as the second route -----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wiring", "heads"),
    [
        ("residuals", "none"),
        ("modernbert", "tags-modernbert"),
        ("mpnet", "mlm"),
        ("deberta", "questions"),
        ("nomic + gated, low rank", "classification"),
        ("one segment, offset + projection first", "rtd"),
    ],
)
def test_torchs_exporter_writes_the_same_answers(wiring: str, heads: str) -> None:
    """Of one layer, or of two where they differ or share: it takes seconds."""
    pytest.importorskip("onnxscript")
    keys = {key: value for name in wiring.split(" + ") for key, value in WIRINGS[name].items()}
    check(model_of(heads=heads, **_cut(keys)), write=trace_model, tolerance=1e-4)


def _cut(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a wiring for the first of its three layers, or the first two."""
    per_layer = {name: keys.get(name, PLAIN.get(name)) for name in ("layers", "windows", "rotary_bases")}
    depth = 2 if "windows" in keys or "sharing" in keys else 1
    cut = keys | {name: value[:depth] for name, value in per_layer.items() if value is not None}
    return cut | ({"sharing": Sharing((0, 0), (0, 1), residual_rank=3)} if "sharing" in keys else {})


def test_what_torchs_exporter_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match="--opset 17: torch supports opset 18 to 22; use one of these"):
        trace_model(model_of(), None, opset=17, notes={})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"onnxscript is not installed; pip install 'compress-bert\[onnx\]'"):
        trace_model(model_of(), None, opset=20, notes={})
