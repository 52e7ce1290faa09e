"""A model that is too sure of itself, with labelled data of which it answers three rows of four right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import compress

MARGIN = 5.0  # between the logits of the two best labels, on average


def make_overconfident(folder: Path, data: Path) -> None:
    """Scale the head's weights of the model in `folder`, and write train, validation and test rows to `data`."""
    texts = [f"row {i} of the {word} part" for i in range(24) for word in ("first", "second", "third")]
    answers = compress.load(str(folder), device="cpu").predict(texts)
    shares = [sorted(a.probabilities.values()) for a in answers]
    margin = float(np.mean([np.log(s[-1] / s[-2]) for s in shares]))
    weights = load_file(folder / "model.safetensors")
    heads = [name for name in weights if name.startswith("classifier.")]
    assert heads, sorted(weights)
    scaled = {name: weights[name] * np.float32(MARGIN / margin) for name in heads}
    save_file({**weights, **scaled}, folder / "model.safetensors", {"format": "pt"})
    (folder / "manifest.json").unlink(missing_ok=True)  # the weights have changed
    data.mkdir()
    for place, split in enumerate(("train", "validation", "test")):
        rows = []
        for number, (text, answer) in enumerate(list(zip(texts, answers, strict=True))[place::3]):
            other = next(name for name in answer.probabilities if name != answer.label)
            rows.append({"text": text, "label": other if number % 4 == 0 else answer.label})
        (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
