"""Run in an interpreter of its own: what another program answers with a model folder. Imports nothing of `compress`.

    python peer.py CLIENT TEXTS.json FOLDER...  →  one JSON document on the last line: {"versions": .., "rows": [..]}

rows: the answers with each folder. Each client is given folders and nothing else: how long texts are read and how they
are padded comes from their files.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[list[float]]
HALF = 3  # texts of the first of two batches: what is padded beside what must not matter


def transformers(folder: str, texts: list[str]) -> Rows:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return batched(lambda part: model(**tokenizer(part, truncation=True, padding=True, return_tensors="pt")), texts)


def optimum(folder: str, texts: list[str]) -> Rows:
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = ORTModelForSequenceClassification.from_pretrained(folder)
    return batched(lambda part: model(**tokenizer(part, truncation=True, padding=True, return_tensors="pt")), texts)


def onnxruntime(folder: str, texts: list[str]) -> Rows:
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return plain(folder, texts, lambda feed: session.run(["logits"], {name: feed[name] for name in names})[0])


def openvino(folder: str, texts: list[str]) -> Rows:
    import openvino

    model = openvino.Core().compile_model(f"{folder}/model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [port.get_any_name() for port in model.inputs]
    return plain(folder, texts, lambda feed: model({name: feed[name] for name in names})[0])


def sentence_transformers(folder: str, texts: list[str], **how: Any) -> Rows:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", **how).float()  # a static model is stored in fp16
    return model.encode(texts, batch_size=HALF).tolist()


def sentence_transformers_onnx(folder: str, texts: list[str]) -> Rows:
    return sentence_transformers(folder, texts, backend="onnx")


def fastembed(folder: str, texts: list[str]) -> Rows:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    pooling = json.loads(Path(folder, "1_Pooling/config.json").read_text())
    listed = [row["type"] for row in json.loads(Path(folder, "modules.json").read_text())]
    TextEmbedding.add_custom_model(
        model="ours",
        pooling=PoolingType.MEAN if pooling["pooling_mode_mean_tokens"] else PoolingType.CLS,
        normalization=listed[-1].endswith("Normalize"),
        sources=ModelSource(hf="nobody/ours"),
        dim=pooling["word_embedding_dimension"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding(model_name="ours", specific_model_path=folder, local_files_only=True)
    return [row.tolist() for row in model.embed(texts, batch_size=HALF)]


def batched(answer: Callable[[list[str]], Any], texts: list[str]) -> Rows:
    return [row for part in (texts[:HALF], texts[HALF:]) for row in answer(part).logits.tolist()]


def plain(folder: str, texts: list[str], run: Callable[[dict[str, Any]], Any]) -> Rows:
    """With `tokenizers` alone, cut where tokenizer_config.json says."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    settings = json.loads(Path(folder, "tokenizer_config.json").read_text())
    pad = settings["pad_token"]
    pad = pad["content"] if isinstance(pad, dict) else pad
    tokenizer.enable_truncation(settings["model_max_length"])
    tokenizer.enable_padding(pad_token=pad, pad_id=tokenizer.token_to_id(pad) or 0)
    rows: Rows = []
    for part in (texts[:HALF], texts[HALF:]):
        encoded = tokenizer.encode_batch(part)
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        feed = {name: np.array([getattr(one, field) for one in encoded], np.int64) for name, field in fields.items()}
        rows += run(feed).tolist()
    return rows


PACKAGES = {
    "transformers": ("transformers",),
    "optimum": ("optimum-onnx", "transformers", "onnxruntime"),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "sentence_transformers": ("sentence-transformers", "transformers"),
    "sentence_transformers_onnx": ("sentence-transformers", "optimum-onnx"),
    "fastembed": ("fastembed", "onnxruntime"),
}

if __name__ == "__main__":
    gc.disable()  # looking for garbage among all that the libraries import takes as long as importing them
    client, texts, *folders = sys.argv[1:]
    found = [globals()[client](folder, json.loads(Path(texts).read_text(encoding="utf-8"))) for folder in folders]
    versions = {name: importlib.metadata.version(name) for name in PACKAGES[client]}
    print("\n" + json.dumps({"versions": versions, "rows": found}))
    gc.freeze()  # nor at the exit
