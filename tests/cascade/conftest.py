"""Two tiny models, and labelled rows of which the small one answers right what it is sure of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.cascade import candidates
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.cascade import Stage, fill
from compress.modelfolder.folder import FolderMeta, save_model
from compress.predict.predictor import Predictor
from compress.predict.real_texts import TextLatency
from compress.storage import atomic
from evaluation.cascade import compute_confidence

LABELS = ("x", "y", "z")
ROWS = 40
"""Of each split."""
Maker = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Maker:
    """`make_folder("a", seed=1, layers=2)`: a model folder with a head of three labels. noise: of its weights, by which
    it answers a little otherwise than one without."""

    def make(name: str, seed: int = 1, labels: tuple[str, ...] = LABELS, **how: Any) -> Path:
        files, noise = how.pop("tokenizer", toy_tokenizer_files), how.pop("noise", 0.0)
        head = how.pop("head", HeadConfig("classification", labels=len(labels)))
        uniform = {"hidden": 32, "heads": 2, "feed_forward": 48, "max_positions": 32, "layers": 2, **how}
        config = EncoderConfig.uniform(vocabulary=tiny_config.vocabulary, **uniform)
        model = Model(dataclasses.replace(config, initializer_range=0.5), {head.name: head}).initialize(seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters() if noise else ():
                weight += noise * torch.randn(weight.shape, generator=generator)
        meta = FolderMeta(label_names=labels, max_length=16, task="classification")
        return save_model(tmp_path / name, model, tokenizer_files=files, meta=meta)

    return make


@pytest.fixture
def texts(toy_vocabulary: list[str]) -> list[str]:
    """Different texts of known words."""
    words = [word for word in toy_vocabulary if word.isalpha()]
    generator = np.random.default_rng(0)
    return list(dict.fromkeys(" ".join(generator.choice(words, 6)) for _ in range(20 * ROWS)))


@pytest.fixture
def small(make_folder: Maker) -> Path:
    return make_folder("small", layers=3, noise=0.1)


@pytest.fixture
def parent(make_folder: Maker) -> Path:
    return make_folder("parent", layers=3)


@pytest.fixture
def data(tmp_path: Path, texts: list[str], small: Path, parent: Path) -> Path:
    """Labelled as the parent answers. Of each split, one half are texts that the small model is sure of and answers
    alike, the other half texts that it is not sure of and answers otherwise."""
    ours, theirs = (predict_logits(model, texts) for model in (small, parent))
    sure, gold = compute_confidence(ours), theirs.argmax(1)
    alike, half = ours.argmax(1) == gold, ROWS // 2
    easy = np.flatnonzero((sure > np.median(sure)) & alike)
    hard = np.flatnonzero((sure <= np.median(sure)) & ~alike)
    assert min(len(easy), len(hard)) >= 3 * half
    folder = tmp_path / "data"
    folder.mkdir()
    for place, split in enumerate(("train", "validation", "test")):
        part = slice(place * half, (place + 1) * half)
        rows = [{"text": texts[i], "label": LABELS[gold[i]]} for i in (*easy[part], *hard[part])]
        rows += [{"text": f"a row of {label}", "label": label} for label in LABELS if split == "train"]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def predict_logits(folder: Path, texts: list[str]) -> np.ndarray:
    predictor = Predictor(folder, task="classification")
    return predictor.logits(predictor.task.encode_texts(predictor.tokenizer, texts, max_length=16))


def write_cascade(target: Path, folders: list[Path], thresholds: list[float], temperature: float = 1.0) -> Path:
    """A cascade of these models, which was not measured."""
    stages = [
        Stage(name=f.name, folder=f"stage-{i}", temperature=temperature, threshold=t)
        for i, (f, t) in enumerate(zip(folders, [*thresholds, None], strict=True), 1)
    ]
    meta = FolderMeta(label_names=LABELS, task="classification", max_length=16, method="cascade", family="bert")
    with atomic.new_folder(target) as temp:
        fill(temp, stages, folders, meta)
    return target


@pytest.fixture
def latencies(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Name of a model → its milliseconds, instead of those of a clock."""
    known = {"small": 1.0, "middle": 3.0, "parent": 10.0}

    def look_up(request: Any, predictors: Any) -> list[TextLatency]:
        found = [known[predictor.folder.name] for predictor in predictors]
        return [TextLatency(ms, ms, ms, 0.1) for ms in found]

    monkeypatch.setattr(candidates, "_measure_latencies", look_up)
    return known
