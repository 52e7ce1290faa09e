"""Writes a model folder: checked before, written whole or not at all, read back before it gets its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compress
from compress.durable import atomic, safe
from compress.encoder.config import HeadConfig
from compress.encoder.masks import require_pattern, sparse_parts
from compress.encoder.model import Model
from compress.encoder.sparsity import SPARSITY, to_values
from compress.encoder.tied import check_tied
from compress.errors import UserError
from compress.modelfolder import card as cards
from compress.modelfolder import family as families
from compress.modelfolder import labels, vocabulary, weights
from compress.modelfolder import meta as metas
from compress.modelfolder.family import NATIVE, Family
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.opening import CONFIG, open_folder

README = "README.md"
_WIRING = ("vocabulary", "hidden", "width", "layers", "groups", "norm", "first_norm", "bias", "gated", "activation")
_WIRING += ("sharing", "project_first")
_WIRING += ("rotary_bases", "patterns", "max_positions", "position_offset", "segments", "pooler")
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def save_model(
    path: Path | str,
    model: Model,
    *,
    tokenizer_files: Mapping[str, bytes],
    meta: FolderMeta | None = None,
    card: str | None = None,
    beside: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Path:
    """Write the folder; returns its path.

    The folder is a stock transformers one of `meta.family` where that family computes the model, else of another stock
    family, else in our own format, and the card says which and why. Heads: config.json names the class of the task head
    where there is one; the others stay in the file under their stock names, where their own classes find them (and a
    class without a pooler reports one as unexpected).
    tokenizer_files, beside: by name, written as given; of beside also in folders, as `folder/file`.  card: README.md;
    None for the card made from `meta`.
    replace: allows a folder that we wrote to be replaced. Raises UserError for numbers that are not finite, a matrix
    that is called 2:4 sparse and is not, label names that do not fit, a tokenizer that does not fit the word table, an
    existing target.
    """
    target, meta = Path(path), meta or FolderMeta()
    require_pattern(model, str(target))
    state = _state(model, str(target))
    family, objections = families.choose(model.config, model.head_configs, meta.family or None)
    meta = _completed(meta, model, family, tokenizer_files, str(target))
    values = _config_values(model, family, meta, state)
    names = family.names(model.config, model.head_configs)
    fused = family.fused(model.config, model.head_configs)
    tensors = {names[ours]: tensor for ours, tensor in state.items() if ours in names}
    tensors |= {theirs: torch.cat([state[name] for name in ours]) for theirs, ours in fused.items()}
    given = {**tokenizer_files, **(beside or {})}
    facts = _facts(target.name, model, values, objections, given)
    needed = sum(t.numel() * t.element_size() for t in tensors.values()) + sum(map(len, given.values()))
    with atomic.new_folder(target, replace=replace, needed=needed) as temp:
        atomic.write_safetensors(temp / weights.SINGLE, tensors, {"format": "pt"})
        atomic.write_json(temp / CONFIG, values)
        for name, data in sorted(given.items()):
            (temp / name).parent.mkdir(exist_ok=True)
            atomic.write_bytes(temp / name, data)
        atomic.write_json(temp / metas.FILE, meta.model_dump(mode="json"))
        atomic.write_text(temp / README, cards.render(meta, facts) if card is None else card)
        _check_written(temp, model, tensors)
    return target


def annotate(
    path: Path | str, meta: FolderMeta, card: str | None = None, beside: Mapping[str, bytes] | None = None
) -> None:
    """Replace compress.json and README.md of a folder that we wrote, for instance when it has been measured.

    beside: files by name, added or replaced.

    Weights, config and tokenizer stay the same files, so `folder.fingerprint` does not change.
    """
    folder = Path(path)
    opened = open_folder(folder)
    update = {
        "family": opened.family.model_type,
        "label_names": opened.meta.label_names,
        "vocabulary_sha256": None if opened.vocabulary is None else vocabulary.digest(opened.vocabulary),
        "software": meta.software or opened.meta.software,
    }
    meta = meta.model_copy(update=update)
    kept = [name for name in atomic.read_manifest(folder) if name not in (metas.FILE, README, *(beside or {}))]
    if card is None:
        config, heads = opened.description.encoder, opened.description.heads
        _, objections = families.choose(config, heads, opened.family.model_type)
        with torch.device("meta"):
            model = Model(config, heads)
        facts = _facts(folder.name, model, opened.values, objections, (*kept, *(beside or {})))
        card = cards.render(meta, facts)
    with atomic.new_folder(folder, replace=True) as temp:
        for name in kept:
            _carry(folder / name, temp / name)
        for name, data in (beside or {}).items():
            atomic.write_bytes(temp / name, data)
        atomic.write_json(temp / metas.FILE, meta.model_dump(mode="json"))
        atomic.write_text(temp / README, card)


def duplicate(source: Path, target: Path) -> None:
    """A folder that we wrote under a second name, in place of what we wrote there before; takes no room."""
    with atomic.new_folder(target, replace=True) as temp:
        for name in atomic.read_manifest(source):
            _carry(source / name, temp / name)


def _state(model: Model, where: str) -> dict[str, Tensor]:
    """The model's tensors, each under one name; finite."""
    with torch.device("meta"):
        check_tied(model, Model(model.config, model.head_configs), where)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    seen: dict[int, str] = {}
    for name, tensor in state.items():
        if (first := seen.setdefault(tensor.data_ptr(), name)) != name and tensor.numel():
            raise UserError(
                f"'{first}' and '{name}' are one tensor",
                where=where,
                why="config has no words for it, and loading would make two of it",
                do="share whole layers, with layer_groups",
            )
    safe.require_finite(state, where)
    kinds = {tensor.dtype for tensor in state.values()}
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        raise UserError(
            f"the weights are {', '.join(sorted(map(str, kinds)))}", where=where, why="one float type is stored"
        )
    return state


def _completed(
    meta: FolderMeta, model: Model, family: Family, tokenizer_files: Mapping[str, bytes], where: str
) -> FolderMeta:
    for name in tokenizer_files:
        if name not in vocabulary.FILES:
            raise UserError(
                f"'{name}' is not a tokenizer file", where=where, why="known: " + ", ".join(vocabulary.FILES)
            )
    tokens = vocabulary.tokens(tokenizer_files, where)
    if tokens is not None:
        vocabulary.check_fits(tokens, model.config.vocabulary, where)
    software = meta.software or {"compress": compress.__version__, "torch": str(torch.__version__)}
    return meta.model_copy(
        update={
            "family": family.model_type,
            "label_names": _label_names(meta, model.head_configs.get("task"), where),
            "vocabulary_sha256": None if tokens is None else vocabulary.digest(tokens),
            "software": software,
        }
    )


def _label_names(meta: FolderMeta, task: HeadConfig | None, where: str) -> tuple[str, ...]:
    if task is None:
        return ()
    if task.kind == "question_answering":
        return labels.SPAN_NAMES
    names = meta.label_names or tuple(labels.default_names(task.labels))
    if len(names) != task.labels:
        raise UserError(f"{len(names)} label names for a head of {task.labels}", where=where)
    if len(set(names)) != len(names):
        raise UserError("two labels have the same name", where=where, why=", ".join(names[:10]))
    return names


def _config_values(model: Model, family: Family, meta: FolderMeta, state: Mapping[str, Tensor]) -> dict[str, Any]:
    values = family.config_values(model.config, model.head_configs)
    values["dtype"] = _DTYPES[next(iter(state.values())).dtype]
    if family.model_type != NATIVE and (sparsity := to_values(model.config)):
        values[SPARSITY] = sparsity  # which stock classes pass over: they load a dense model with zeros
    task = model.head_configs.get("task")
    return values if task is None else values | labels.write_names(meta.label_names, task.problem)


def _facts(
    name: str, model: Model, values: Mapping[str, Any], objections: Mapping[str, str], files: Collection[str]
) -> cards.Facts:
    config, heads = model.config, model.head_configs
    count = config.count_parameters() + sum(head.count_parameters(config) for head in heads.values())
    return cards.Facts(
        name=name,
        parameters=count,
        parameters_without_embeddings=count - config.count_embeddings(),
        layers=config.depth,
        hidden=config.hidden,
        heads=tuple(heads),
        stock_class=None if values["model_type"] == NATIVE else values["architectures"][0],
        objections=objections,
        certificate=metas.CERTIFICATE in files,
        sparse=len(sparse_parts(model)),
    )


def _check_written(temp: Path, model: Model, tensors: Mapping[str, Tensor]) -> None:
    """What lies on the disk must be this model: same description, same tensors, nothing stored twice."""
    opened = open_folder(temp)
    written = safe.load_safetensors(temp / weights.SINGLE)
    _must(written.keys() == tensors.keys(), "the file has other tensors than the model")
    for name, tensor in tensors.items():
        _must(torch.equal(written[name], tensor.cpu()), f"{name} reads back differently")
    names = opened.family.names(model.config, model.head_configs)
    fused = opened.family.fused(model.config, model.head_configs)
    _must(set(names) == set(opened.description.names), "config.json describes other tensors")
    _must({*fused.values()} == {*opened.description.fused.values()}, "config.json describes other fused tensors")
    for field in _WIRING:
        ours, theirs = getattr(model.config, field), getattr(opened.description.encoder, field)
        _must(ours == theirs, f"config.json gives {field} back as {theirs}, not {ours}")


def _must(holds: bool, otherwise: str) -> None:
    """A bug, or a disk that lies: the folder is not given its name."""
    if not holds:
        raise RuntimeError(f"the model folder is not what was meant: {otherwise}")


def _carry(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system cannot."""
    target.parent.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    atomic.write_bytes(target, source.read_bytes())
