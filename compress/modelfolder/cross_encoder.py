"""Rerankers as sentence-transformers stores them: a CrossEncoder with one label, in both of its layouts.

Before version 6 the folder is a classifier of transformers whose config.json holds a key of sentence-transformers; from
then on modules.json and config_sentence_transformers.json lie beside it. What we write has the keys of both older
layouts, which all versions read; files of the newer one are carried over as they are (`sentence_files`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError, printable
from compress.modelfolder.family import Description
from compress.modelfolder.fields import Fields
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_pooling import MODULES, PROMPTS, read_prompt, read_tokenizer_length
from compress.storage import safe

RERANKING, RANKING = "reranking", "ranking"
"""The kind of the task, and the problem of its head."""
KEY, OLD_KEY, ACTIVATION = "sentence_transformers", "sbert_ce_default_activation_function", "activation_fn"
"""Of config.json, from version 4 on and before; and of the newer one, what turns a logit into the score."""
_EMBEDDER = re.compile(r"modules\.json|config_sentence_transformers\.json|sentence_\w+_config\.json|\d+_\w*/.*")
_VERSION = "4.0.0"
"""The first version that reads KEY."""
_CLASSES = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}


def with_ranking(description: Description, values: Mapping[str, Any], folder: Path, task: str | None) -> Description:
    """The description with its task head as a reranker's, where the files of sentence-transformers say that it is one.

    values: config.json.  task: of compress.json, which decides where it is there.
    """
    head = description.heads.get("task")
    if head is None or not _is_pair_score(head):
        return description
    if task != RERANKING and (task is not None or not is_cross_encoder(values, folder)):
        return description
    ranking = dataclasses.replace(head, problem=RANKING)
    return dataclasses.replace(description, heads={**description.heads, "task": ranking})


def is_cross_encoder(values: Mapping[str, Any], folder: Path) -> bool:
    """Whether a CrossEncoder of sentence-transformers was saved here. values: config.json."""
    return (
        OLD_KEY in values or isinstance(values.get(KEY), dict) or _settings(folder).get("model_type") == "CrossEncoder"
    )


def ranking_meta(meta: FolderMeta, values: Mapping[str, Any], folder: Path) -> FolderMeta:
    """`meta` with what the files say of the score and of the longest pair.

    Raises UserError for an activation other than Sigmoid and Identity, and for a default prompt.
    """
    if (folder / MODULES).is_file() and _settings(folder).get("model_type") == "CrossEncoder" and read_prompt(folder):
        raise UserError(
            "a default prompt of a reranker is not supported", where=str(folder / PROMPTS),
            do="set default_prompt_name to null, and put the prompt before the queries",
        )  # fmt: skip
    length = read_tokenizer_length(folder) or meta.max_length
    settings = {**meta.task_settings, "activation": _read_activation(values, folder)}
    return meta.model_copy(update={"task": RERANKING, "task_settings": settings, "max_length": length})


def config_keys(meta: FolderMeta) -> dict[str, Any]:
    """What config.json holds of a reranker, for all versions of sentence-transformers."""
    name = _CLASSES[str(meta.task_settings.get("activation", "sigmoid"))]
    return {KEY: {ACTIVATION: name, "version": _VERSION}, OLD_KEY: name}


def without_embedder(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files by name, without those that give vectors of texts. Those of a CrossEncoder stay."""
    settings = files.get(PROMPTS)
    if settings is not None and b'"CrossEncoder"' in settings:
        return dict(files)
    return {name: data for name, data in files.items() if not _EMBEDDER.fullmatch(name)}


def _is_pair_score(head: HeadConfig) -> bool:
    return head.kind == "classification" and head.labels == 1 and head.problem in ("regression", RANKING)


def _read_activation(values: Mapping[str, Any], folder: Path) -> str:
    """In the order in which sentence-transformers looks for it; a sigmoid where nothing is said."""
    said, where = None, folder / "config.json"
    if (folder / MODULES).is_file():
        said, where = _settings(folder).get(ACTIVATION), folder / PROMPTS
    if said is None:
        held = values.get(KEY)
        said, where = held.get(ACTIVATION) if isinstance(held, dict) else values.get(OLD_KEY), folder / "config.json"
    if said is None:
        return "sigmoid"
    names = {name: kind for kind, whole in _CLASSES.items() for name in (whole, f"torch.nn.{whole.rpartition('.')[2]}")}
    if not isinstance(said, str) or said not in names:
        raise UserError(
            f"activation_fn {printable(repr(said), 80)} is not supported", where=str(where),
            do="use " + " or ".join(_CLASSES.values()),
        )  # fmt: skip
    return names[said]


def _settings(folder: Path) -> Mapping[str, Any]:
    """config_sentence_transformers.json; empty where there is none."""
    file = folder / PROMPTS
    return Fields(safe.read_json(file), str(file)).values if file.is_file() else {}
