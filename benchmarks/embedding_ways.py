"""Ways to turn texts into vectors with one sentence-transformers folder: other libraries, and folders made from it.

A peer whose packages are not installed raises ImportError. ONNX Runtime and OpenVINO run inside sentence-transformers,
in place of its torch module, as its own backends do: its tokenizer, its batches of 32 sorted by length, its pooling.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx_peers import StandIn, export, open_session, quantize

from compress.onnx.runtimes import Runtime
from compress.predict.predictor import Predictor
from evaluation.cost.size import MB, weights_bytes

STATES = "last_hidden_state"
CALIBRATION = 128
"""Texts that OpenVINO's ranges are observed on, the default of optimum-intel."""


@dataclass(frozen=True)
class Way:
    """encode: (N,) texts → (N, D) vectors.  megabytes: of the file with the weights."""

    name: str
    megabytes: float
    encode: Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Request:
    """folder: of the model.  work: where files are made.  texts: to observe ranges on."""

    folder: Path
    work: Path
    texts: Sequence[str]
    threads: int


def open_folder(name: str, folder: Path, runtime: Runtime | None = None) -> Way:
    """A folder of this project, as `compress predict` answers with it."""
    predictor = Predictor(folder, runtime=runtime)

    def encode(texts: Sequence[str]) -> np.ndarray:
        return np.stack([answer.vector for answer in predictor.predict(list(texts))])

    return Way(name, sum(map(weights_bytes, predictor.files)) / MB, encode)


def open_sentence_transformers(asked: Request) -> Way:
    return _as_way("sentence-transformers, torch fp32", _load(asked), asked.folder / "model.safetensors")


def open_onnx(asked: Request) -> Way:
    return _in_onnxruntime("sentence-transformers, ONNX Runtime fp32", asked, _export(asked))


def open_onnx_int8(asked: Request) -> Way:
    file = quantize(_export(asked), asked.work / "model_qint8_avx512_vnni.onnx")
    return _in_onnxruntime("sentence-transformers, ONNX Runtime dynamic int8", asked, file)


def open_openvino_int8(asked: Request) -> Way:
    """`export_static_quantized_openvino_model(model, None, ...)`: the options that it and optimum-intel hand to nncf,
    with texts of this benchmark instead of GLUE's."""
    import nncf
    import openvino

    file = asked.work / "openvino_qint8.xml"
    if not file.exists():
        tokenizer = _load(asked).tokenizer
        some = [dict(tokenizer(text, return_tensors="np", truncation=True)) for text in asked.texts[:CALIBRATION]]
        made = nncf.quantize(
            openvino.Core().read_model(_export(asked)), nncf.Dataset(some), preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION, fast_bias_correction=True,
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.DISABLE),
        )  # fmt: skip
        openvino.save_model(made, file, compress_to_fp16=False)
    return _in_openvino("sentence-transformers, OpenVINO int8 (nncf)", asked, file)


def open_model2vec(asked: Request, dimensions: int) -> Way:
    """Distilled by model2vec, which reads no texts."""
    from model2vec import StaticModel
    from model2vec.distill import distill

    place = asked.work / f"model2vec-{dimensions}"
    if not place.exists():
        distill(model_name=str(asked.folder), device="cpu", pca_dims=dimensions).save_pretrained(str(place))
    model = StaticModel.from_pretrained(str(place))
    return Way(
        f"model2vec, {dimensions} dimensions", _megabytes(place / "model.safetensors"),
        lambda texts: np.asarray(model.encode(list(texts)), dtype=np.float32),
    )  # fmt: skip


def open_fastembed(asked: Request) -> Way:
    """Its own tokenizer, batches of 256 and pooling; floats in ONNX Runtime, as its own file of this model has."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = _export(asked)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copyfile(asked.folder / name, asked.work / name)
    TextEmbedding.add_custom_model(
        "measured", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="measured"),
        dim=_load(asked).get_embedding_dimension(), model_file=file.name,
    )  # fmt: skip
    model = TextEmbedding("measured", specific_model_path=str(asked.work), threads=asked.threads, cuda=False)
    return Way("fastembed, ONNX Runtime fp32", _megabytes(file), lambda texts: np.stack(list(model.embed(list(texts)))))


PEERS: Mapping[str, Callable[[Request], Way]] = {
    "sentence-transformers": open_sentence_transformers,
    "ONNX Runtime fp32": open_onnx,
    "ONNX Runtime dynamic int8": open_onnx_int8,
    "OpenVINO int8": open_openvino_int8,
    "fastembed": open_fastembed,
    "model2vec, 256 dimensions": lambda asked: open_model2vec(asked, 256),
    "model2vec, 128 dimensions": lambda asked: open_model2vec(asked, 128),
}
"""The first is what the others are compared with."""


def _load(asked: Request) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(asked.folder), device="cpu")


def _as_way(name: str, model: Any, file: Path) -> Way:
    return Way(name, _megabytes(file), lambda texts: model.encode(list(texts), show_progress_bar=False))


def _export(asked: Request) -> Path:
    return export(_load(asked)[0].auto_model, STATES, asked.work / "model.onnx", {0: "batch", 1: "length"})


def _in_onnxruntime(name: str, asked: Request, file: Path) -> Way:
    return _replaced(name, asked, file, open_session(file, asked.threads))


def _in_openvino(name: str, asked: Request, file: Path) -> Way:
    import openvino

    how = {"INFERENCE_NUM_THREADS": asked.threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(file, "CPU", how).create_infer_request()
    return _replaced(name, asked, file.with_suffix(".bin"), lambda arrays: request.infer(dict(arrays))[STATES].copy())


def _replaced(name: str, asked: Request, file: Path, states: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> Way:
    model = _load(asked)
    model[0].model = StandIn(model[0].auto_model.config, STATES, states)
    return _as_way(name, model, file)


def _megabytes(file: Path) -> float:
    return file.stat().st_size / MB
