"""Folders as versions before `compress_config.json` wrote them, made of those that this version writes."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from compress.modelfolder import private
from compress.modelfolder.family import NATIVE
from compress.modelfolder.folder import load_model


def as_older(folder: Path) -> Path:
    """The folder in place: our description is its config.json, of model_type compress-encoder, and all tensors lie
    in model.safetensors under our names. Without a manifest, as one that is copied by hand."""
    loaded = load_model(folder)
    values = json.loads((folder / "config.json").read_text())
    described = private.values_of(loaded.config, loaded.heads, fits=False)
    kept = {key: values[key] for key in ("dtype", "id2label", "label2id", "problem_type") if key in values}
    config = {"model_type": NATIVE, "architectures": ["compress.encoder.modules.model.Model"], **described, **kept}
    tensors = {name: tensor.detach().clone() for name, tensor in loaded.model.state_dict().items()}
    for name in ("manifest.json", "model.safetensors", private.WEIGHTS, private.FILE):
        (folder / name).unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    meta = json.loads((folder / "compress.json").read_text()) | {"format_version": 1, "family": NATIVE}
    (folder / "compress.json").write_text(json.dumps(meta))
    assert load_model(folder).family == NATIVE
    return folder
