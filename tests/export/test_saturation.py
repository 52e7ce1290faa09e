"""Integer products are exact on processors without VNNI too, whose fast kernels add two products in 16 bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import test_onnx_encoder as floats
import test_onnx_integers as files
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from compress.encoder.config.quantization import Quantization
from compress.encoder.integers import products as integers
from compress.encoder.integers.convert import quantize_model as make_quantized
from compress.encoder.integers.fake_quantized import QuantizedSharedLinear, list_quantized_modules, quantizable, use
from compress.encoder.integers.products import prepare_integers
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.model import Model
from compress.onnx import openvino_session, session, start
from compress.onnx.axes import EXACT, INT8_PRODUCTS
from compress.onnx.encoder import encode
from compress.onnx.openvino_session import OpenVinoSession
from compress.onnx.overflow import rewrite_as_unsigned
from compress.onnx.session import FileSession, OnnxSession
from compress.quantizers import per_channel, per_tensor
from compress.quantizers._saturation import PAIR_LIMIT, TOP, can_overflow, pair_range

RUNTIMES = [OnnxSession, floats.OPENVINO]
FULL_RANGE = {"weight": {"kind": "per_channel"}, "input": {"kind": "per_token"}}
SAFE = {"weight": {"kind": "per_channel", "overflow_safe": True}, "input": {"kind": "per_token"}}
STATIC_FULL_RANGE = {"weight": {"kind": "per_channel"}, "input": {"kind": "min_max"}}
SCHEMES: dict[str, Any] = {
    "per-token": SAFE,
    "per-token, full range": FULL_RANGE,
    "static": {**SAFE, "input": {"kind": "min_max"}},
    "static, full range": STATIC_FULL_RANGE,
}


def saturating_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x (M, K) unsigned times w (K, N) signed as vpmaddubsw computes it: two neighbours are added in 16 bits."""
    if x.shape[1] % 2:
        x, w = np.pad(x, ((0, 0), (0, 1))), np.pad(w, ((0, 1), (0, 0)))
    products = x.astype(np.int32)[:, :, None] * w.astype(np.int32)[None]
    pairs = products[:, 0::2] + products[:, 1::2]
    return pairs.clip(-(2**15), 2**15 - 1).sum(1)


def extreme_inputs(w: np.ndarray) -> np.ndarray:
    """Inputs (M, K) that bring products with w (K, N) furthest: for each output and sign the largest where w has it."""
    above, below = (w.T > 0) * TOP, (w.T < 0) * TOP
    return np.concatenate([above, below, np.full((1, len(w)), TOP)]).astype(np.uint8)


matrices = st.integers(1, 9).flatmap(
    lambda rows: st.integers(1, 17).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=width, max_size=width),
            min_size=rows,
            max_size=rows,
        )
    )
)


@settings(deadline=None)
@given(matrices, st.sampled_from([per_channel, per_tensor]), st.integers(2, 8))
def test_overflow_safe_weights_are_exact_in_16_bits(values: list[list[float]], kind: Any, bits: int) -> None:
    weight = torch.tensor(values)
    codes = kind.Quantizer(tuple(weight.shape), bits=bits, overflow_safe=True).export(weight).codes
    assert not can_overflow(codes)
    assert int(pair_range(codes.int()).max()) <= PAIR_LIMIT
    w = codes.numpy().T
    x = extreme_inputs(w)
    np.testing.assert_array_equal(saturating_product(x, w), x.astype(np.int64) @ w.astype(np.int64))


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_what_can_overflow_is_known(rows: int, width: int, seed: int) -> None:
    """`can_overflow` is true of exactly those codes that some input brings beyond 16 bits."""
    codes = np.random.default_rng(seed).integers(-128, 128, (rows, width)).astype(np.int8)
    x = extreme_inputs(codes.T)
    clipped = saturating_product(x, codes.T) != x.astype(np.int64) @ codes.T.astype(np.int64)
    assert can_overflow(torch.from_numpy(codes)) == bool(clipped.any())


def test_the_price_of_safety_is_below_one_bit() -> None:
    weight = torch.randn(64, 384, generator=torch.Generator().manual_seed(0))
    scales = [per_channel.Quantizer(overflow_safe=safe).scale_and_zero_point(weight)[0] for safe in (False, True)]
    ratio = scales[1] / scales[0]
    assert float(ratio.min()) >= 1
    assert float(ratio.max()) < 2  # 7 bits
    assert 1.2 < float(ratio.mean()) < 1.5


def extreme(scheme: Any) -> Model:
    """A quantized model whose matrices hold the codes ±127 alone where the scheme allows them, in equal neighbours."""
    model = files.quantized("bert", "classification", scheme)
    for module in list_quantized_modules(model).values():
        if use(module) == "weight":
            signs = torch.where(torch.rand_like(module.weight[:, ::2]) < 0.5, -1.0, 1.0).repeat_interleave(2, -1)
            module.weight.data = signs[:, : module.weight.shape[1]] * module.weight.abs().max()
    return model


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_plain_sessions_give_the_models_answers(scheme: str, kind: type[FileSession]) -> None:
    """With the worst weights there are, opened as other clients open the file. Fails without VNNI where codes clip."""
    torch.manual_seed(0)
    model = extreme(SCHEMES[scheme])
    assert files.close(model, files.session_of(model, kind), [24, 1, 7, 16])


@pytest.mark.thorough
@floats.MISSING
def test_openvinos_own_form_says_to_compute_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With VNNI, OpenVINO by itself rounds the inputs of unsigned weights once more."""
    torch.manual_seed(0)
    model = extreme(STATIC_FULL_RANGE)
    for name, content in openvino_session.written_for_openvino(
        encode(model, next(iter(model.heads))).SerializeToString()
    ).items():
        (tmp_path / name).write_bytes(content)
    assert 'DYNAMIC_QUANTIZATION_GROUP_SIZE value="0"' in (tmp_path / openvino_session.FILES[0]).read_text()
    monkeypatch.setattr(start, "AS_WRITTEN", {})
    assert files.close(model, OpenVinoSession(tmp_path / openvino_session.FILES[0], threads=1), [24, 1, 7, 16])


@pytest.mark.parametrize("wiring", ["bert", "residuals", "modernbert"])
@pytest.mark.parametrize("scheme", [*SCHEMES, "lsq", "q8bert"])
def test_no_signed_weights_of_a_file_can_overflow(scheme: str, wiring: str) -> None:
    """On any machine: int8 operands of products are checked against the 16-bit limit; others are unsigned."""
    proto = encode(files.quantized(wiring, "none", SCHEMES.get(scheme, scheme)), None)
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    operands = [n.input[1] for n in proto.graph.node if n.op_type in ("MatMulInteger", "MatMulIntegerToFloat")]
    operands += [n.input[0] for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in stored]
    matrices = [stored[name] for name in operands if stored[name].ndim == 2]
    assert len(matrices) >= 6
    signed = [w for w in matrices if w.dtype == np.int8]
    assert all(w.dtype in (np.int8, np.uint8) for w in matrices)
    assert not any(can_overflow(torch.from_numpy(w.T.copy())) for w in signed)
    if "full range" in scheme:
        assert len(signed) < len(matrices)
    elif scheme in SCHEMES:
        assert len(signed) == len(matrices)


def test_a_file_states_that_it_is_exact() -> None:
    proto = encode(files.quantized(), None)
    assert {p.key: p.value for p in proto.metadata_props}[INT8_PRODUCTS] == EXACT


def earlier_file(model: Model, *, portable: bool = False) -> bytes:
    """The file of a model as earlier versions wrote it: int8 weights whatever they are, and no statement."""
    proto = encode(model, "task", portable=portable)
    del proto.metadata_props[:]
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.uint8 and array.ndim == 2:
            tensor.CopyFrom(numpy_helper.from_array((array.astype(np.int16) - 128).astype(np.int8), tensor.name))
    stored = {t.name: t.data_type for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "MatMulIntegerToFloat":
            del node.input[5:]
        elif node.op_type == "MatMulInteger":
            del node.input[3:]
        elif node.op_type == "DequantizeLinear" and stored.get(node.input[0]) == onnx.TensorProto.INT8:
            del node.input[2:]
    return proto.SerializeToString()


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("scheme", [FULL_RANGE, STATIC_FULL_RANGE], ids=["per-token", "static"])
def test_files_of_earlier_versions_are_exact_in_our_sessions(scheme: Any, kind: type[FileSession]) -> None:
    torch.manual_seed(0)
    model = extreme(scheme)
    assert files.close(model, kind(earlier_file(model), threads=1), [24, 1, 7, 16])  # type: ignore[call-arg]


@pytest.mark.parametrize("wiring", ["bert", "residuals"])
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("scheme", [FULL_RANGE, STATIC_FULL_RANGE, SAFE], ids=["per-token", "static", "safe"])
def test_rewritten_files_hold_the_same_numbers(scheme: Any, portable: bool, wiring: str) -> None:
    """Also where several layers read one matrix."""
    model = files.quantized(wiring, "classification", scheme)
    content = rewrite_as_unsigned(earlier_file(model, portable=portable))
    kinds = {t.data_type for t in onnx.load_model_from_string(content).graph.initializer if len(t.dims) == 2}
    assert onnx.TensorProto.UINT8 in kinds
    assert files.close(model, OnnxSession(content, threads=1), [24, 1, 7, 16])


@pytest.mark.parametrize("saturates", [False, True])
def test_only_files_of_others_are_rewritten(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "saturates", lambda: saturates)
    seen: list[int] = []
    monkeypatch.setattr(
        session, "rewrite_as_unsigned", lambda source: (seen.append(len(source)), rewrite_as_unsigned(source))[1]
    )
    model = files.quantized("bert", "classification", FULL_RANGE)
    OnnxSession(encode(model, "task").SerializeToString(), threads=1)
    assert seen == []
    OnnxSession(earlier_file(model), threads=1)
    assert len(seen) == saturates


@pytest.mark.thorough
@floats.MISSING
def test_openvino_recognizes_exact_files() -> None:
    core = openvino_session._openvino().Core()
    model = files.quantized("bert", "classification", STATIC_FULL_RANGE)
    assert openvino_session._is_exact(core.read_model(encode(model, "task").SerializeToString()))
    assert not openvino_session._is_exact(core.read_model(earlier_file(model)))


@pytest.mark.parametrize("scheme", ["static", "static, full range", "per-token, full range", "lsq"])
@pytest.mark.parametrize("clips", [False, True])
def test_torch_adds_two_products_where_one_would_clip(
    scheme: str, clips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both paths on any machine: oneDNN's kernel is replaced by exact arithmetic, in 16 bits where `clips`."""

    def multiply(x, scale, zero, matrix, scales, zeros, bias=None, attribute="none", algorithm=""):
        codes = matrix.to_dense().numpy()
        made = (saturating_product if clips else np.matmul)(x.numpy().astype(np.int64), codes.astype(np.int64))
        made = torch.from_numpy(made - zero * codes.astype(np.int64).sum(0)).float() * scale * scales
        made = made if bias is None else made + bias
        assert algorithm in ("", "none")
        return torch.nn.functional.gelu(made) if attribute == "gelu" else made

    monkeypatch.setattr(integers, "_multiply", multiply)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda codes, _: codes.T, raising=False)
    monkeypatch.setattr(integers, "kernel_saturates", lambda: clips)
    torch.manual_seed(0)
    model = files.quantized("bert", "classification", "lsq") if scheme == "lsq" else extreme(SCHEMES[scheme])
    twin = prepare_integers(model).model
    counts = {len(m.codes) for m in twin.modules() if isinstance(m, integers.IntegerLinear)}
    assert counts == ({1} if not clips or scheme == "static" else {2} if scheme != "lsq" else counts)
    batch, needs = files.packed(), needs_of(model.heads)
    with torch.inference_mode():
        wanted, found = model(batch, needs).logits, twin(batch, needs).logits
    assert found is not None
    assert wanted is not None
    torch.testing.assert_close(found, wanted, atol=0.02 * float(wanted.abs().max()), rtol=0)


def test_layers_that_share_a_matrix_may_scale_it_differently() -> None:
    """One layer's codes of a shared matrix are not taken for another's."""
    plain = floats.model_of("residuals", "classification")
    matrices = [name for name, module in quantizable(plain).items() if use(module) == "weight"]
    schemes = {name: FULL_RANGE if ".layers.0." in name else SAFE for name in matrices}
    model = make_quantized(plain, Quantization.from_dict(schemes)).eval()
    shared: dict[int, set[bytes]] = {}
    for module in list_quantized_modules(model).values():
        shared.setdefault(module.weight.data_ptr(), set()).add(module.integers().scale.numpy().tobytes())
    assert any(len(scales) > 1 for scales in shared.values())
    seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for module in list_quantized_modules(model).values():
        module.register_forward_hook(lambda m, x, y: seen.append((m, x[0].detach(), y.detach())))
    batch, needs = files.packed(), needs_of(model.heads)
    packs: integers.Packs = {}
    with torch.no_grad():
        model(batch, needs)
        for module, x, y in seen:
            product = integers.IntegerLinear([module], packs)(x)
            residual = integers._Residual(module)(x) if isinstance(module, QuantizedSharedLinear) else 0
            torch.testing.assert_close(product + residual, y, atol=1e-5, rtol=1e-5)


IN_A_PROCESS = """
import sys
import numpy as np, torch
sys.path[:0] = {paths!r}
import test_saturation as tests
import test_torch_int8 as answers
from compress.encoder.integers.products import kernel_saturates
assert kernel_saturates() == {saturates}, "the processor is not the one that was asked for"
torch.manual_seed(0)
for scheme in ("per-token", "per-token, full range", "static, full range"):
    assert answers.close(tests.extreme(tests.SCHEMES[scheme])), scheme
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="x86-64 alone has such kernels")
def test_torchs_products_as_a_processor_without_vnni_computes_them() -> None:
    """oneDNN held to AVX2, in a process of its own, as it reads the variable once."""
    code = IN_A_PROCESS.format(paths=[str(Path(__file__).parents[i]) for i in (0, 1)], saturates=True)
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr


EMULATED = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
options.intra_op_num_threads = options.inter_op_num_threads = 1
with np.load({data!r}) as data:
    feed = {{name: data[name] for name in {inputs!r}}}
found = {{}}
for name in {names!r}:
    session = onnxruntime.InferenceSession(f"{folder}/{{name}}.onnx", options, providers=["CPUExecutionProvider"])
    found[name] = session.run(None, feed)[0]
np.savez("{folder}/found.npz", **found)
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or os.uname().machine != "x86_64", reason="qemu-user is not installed"
)
def test_files_on_an_emulated_processor_without_vnni(tmp_path: Path) -> None:
    """A plain onnxruntime session on an emulated Haswell answers as the model does, and clips what may overflow."""
    torch.manual_seed(0)
    names = {"safe": SAFE, "full": FULL_RANGE, "static": STATIC_FULL_RANGE, "earlier": FULL_RANGE}
    given = floats.inputs([24, 1, 7, 16])
    feed: dict[str, np.ndarray] = {}
    models = {}
    for name, scheme in names.items():
        model = models[name] = extreme(scheme)
        content = earlier_file(model) if name == "earlier" else encode(model, "task").SerializeToString()
        (tmp_path / f"{name}.onnx").write_bytes(content)
        feed = {n: given[n].numpy() for n in OnnxSession(content, threads=1).inputs}
    np.savez(tmp_path / "feed.npz", **feed)  # type: ignore[arg-type]
    site = [str(Path(m.__file__).parents[1]) for m in (np, onnx) if m.__file__]
    code = EMULATED.format(
        paths=site, data=str(tmp_path / "feed.npz"), inputs=list(feed), names=list(names), folder=str(tmp_path)
    )
    python = str(Path(sys.executable).resolve())
    run = ["qemu-x86_64", "-cpu", "Haswell", python, "-c", code]
    made = subprocess.run(run, capture_output=True, text=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert made.returncode == 0, made.stderr
    with np.load(tmp_path / "found.npz") as found:
        apart = {name: float(np.abs(found[name] - files.wanted_of(models[name], given)).max()) for name in names}
        size = {name: float(np.abs(files.wanted_of(models[name], given)).max()) for name in names}
    assert all(apart[name] < 0.01 * size[name] for name in ("safe", "full", "static")), apart
    assert apart["earlier"] > 0.05 * size["earlier"], "the emulated processor does not clip: it shows nothing"
