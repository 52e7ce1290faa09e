"""The head of a folder of sentence-transformers: its pooling, Dense and Normalize modules as an `embedding` head.

The files stay as sentence-transformers wrote them. Of a head whose Dense matrices were trained only these are written
anew.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compress.encoder.config.heads import DenseShape, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError, printable
from compress.modelfolder.family import Description
from compress.modelfolder.fields import Fields
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_pooling import (
    MODULES,
    NAMES,
    PROMPTS,
    READS,
    TRUNCATION,
    Dense,
    Module,
    SentenceParts,
    list_modules,
    parse_modules,
    part_files,
    read_max_length,
    read_parts,
)
from compress.modelfolder.weights import StoredTensor
from compress.storage import safe
from compress.storage.foreign import decode
from compress.storage.tensorfile import decode_safetensors, encode

EMBEDDING = "embedding"
"""The kind of the head, and of its task."""
_AT = "heads.task.denses"
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")
"""Names of prompts, as `encode_query` and `encode_document` of sentence-transformers look for them. An empty one
counts. Version 6.2 never comes to the last two, although it documents them: it takes an absent `document` for an empty
one."""


def with_embedding(description: Description, folder: Path) -> tuple[Description, dict[str, StoredTensor], list[str]]:
    """The model of a folder with its embedding head: (description, tensors of the head, remarks).

    A folder without modules.json, or with another task head, has none. Neither has one with modules that are not
    computed here, whose encoder can be used all the same: the remark says which.
    """
    if "task" in description.heads or not (folder / MODULES).is_file():
        return description, {}, []
    try:
        parts = read_parts(folder, description.encoder.hidden)
    except UserError as error:
        return description, {}, [f"its sentence embeddings cannot be computed: {error.what}"]
    names, stored = {}, {}
    for number, path in enumerate(_dense_folders(list_modules(folder / MODULES))):
        file = folder / path / "model.safetensors"
        for name, entry in safe.read_safetensors_header(file).tensors.items():
            names[f"{_AT}.{number}.{name.removeprefix('linear.')}"] = f"{path}/{name}"
            stored[f"{path}/{name}"] = StoredTensor(name, file, tuple(entry.shape), entry.dtype)
    heads = {**description.heads, "task": _head_of(parts, description.encoder.hidden)}
    return dataclasses.replace(description, heads=heads, names={**description.names, **names}), stored, []


def embedding_meta(meta: FolderMeta, folder: Path, hidden: int) -> FolderMeta:
    """`meta` with what the files of sentence-transformers say of prompts, lower-casing, similarity and length."""
    length = read_max_length(folder) or meta.max_length
    update = {"task": EMBEDDING, "task_settings": _read_settings(folder, hidden), "max_length": length}
    return meta.model_copy(update=update)


def _read_settings(folder: Path, hidden: int) -> dict[str, Any]:
    """The settings of the task: see `data.tasks.embedding`. Empty texts and defaults are left out."""
    parts = read_parts(folder, hidden)
    file = folder / PROMPTS
    fields = Fields(safe.read_json(file), str(file)) if file.is_file() else Fields({}, str(file))
    prompts = fields.values.get("prompts") or {}
    named = {name: text for name, text in prompts.items() if isinstance(text, str)} if isinstance(prompts, dict) else {}
    found = {
        "prompt": parts.prompt,
        "query_prompt": next((named[name] for name in _QUERY if name in named), ""),
        "document_prompt": next((named[name] for name in _DOCUMENT if name in named), ""),
        "lowercase": parts.lowercase,
    }
    if not parts.pools_prompt and (found["query_prompt"] or found["document_prompt"]):
        found["unpooled_prompts"] = True
    similarity = fields.values.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        found["similarity"] = printable(str(similarity), 40)
    return {name: value for name, value in found.items() if value}


def head_files(model: Model, meta: FolderMeta, given: Mapping[str, bytes]) -> dict[str, bytes]:
    """`given` with the files that mean the model's embedding head: those that it holds, where they do, with the Dense
    matrices of the model; else new ones."""
    head = model.heads["task"]
    state = {name: tensor.detach().cpu() for name, tensor in head.state_dict().items()}
    shapes = model.head_configs["task"]
    denses = [
        {part: state[f"denses.{i}.{part}"] for part in ("weight", "bias") if f"denses.{i}.{part}" in state}
        for i in range(len(shapes.denses))
    ]
    if MODULES not in given:
        made = tuple(Dense(d["weight"], d.get("bias"), s.tanh) for d, s in zip(denses, shapes.denses, strict=True))
        settings = meta.task_settings
        parts = SentenceParts(
            NAMES[shapes.pooling], made, shapes.normalize, meta.max_length, bool(settings.get("lowercase")),
            pools_prompt=not settings.get("unpooled_prompts"), static=model.config.is_static,
        )  # fmt: skip
        return part_files(parts, model.config.hidden) | _prompt_file(settings, shapes.truncate) | dict(given)
    files = dict(given)
    modules = parse_modules(decode(given[MODULES], MODULES), MODULES)
    for path, tensors in zip(_dense_folders(modules), denses, strict=True):
        name = f"{path}/model.safetensors"
        ours = {f"linear.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        if not _are_equal(decode_safetensors(files[name], name), ours):
            files[name] = b"".join(encode(ours, {"format": "pt"})[1])
    return files


def _prompt_file(settings: Mapping[str, Any], truncate: int | None) -> dict[str, bytes]:
    """What sentence-transformers reads prompts, the similarity and the cut of vectors from; the inverse of
    `_read_settings`."""
    keys = {"default": "prompt", "query": "query_prompt", "document": "document_prompt"}
    prompts = {name: settings[key] for name, key in keys.items() if settings.get(key)}
    values = {
        "prompts": prompts,
        "default_prompt_name": "default" if "default" in prompts else None,
        "similarity_fn_name": settings.get("similarity", "cosine"),
        **({} if truncate is None else {TRUNCATION: truncate}),
    }
    return {PROMPTS: (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()}


def _head_of(parts: SentenceParts, hidden: int) -> HeadConfig:
    shapes = tuple(DenseShape(int(d.weight.shape[0]), d.bias is not None, d.tanh) for d in parts.denses)
    width = parts.width(hidden)
    return HeadConfig(
        EMBEDDING, labels=width, pooling=READS[parts.pooling], denses=shapes, normalize=parts.normalize,
        truncate=width if width < parts.whole_width(hidden) else None,
    )  # fmt: skip


def _dense_folders(modules: Sequence[Module]) -> list[str]:
    return [module.path for module in modules if module.kind == "Dense"]


def _are_equal(stored: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> bool:
    return stored.keys() == ours.keys() and all(torch.equal(stored[name].float(), ours[name]) for name in ours)
