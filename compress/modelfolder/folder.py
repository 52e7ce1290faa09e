"""Model folders in and out: `load_model`, `save_model`, and what can be asked of a folder without loading it.

A model folder is what the ecosystem loads (config.json, model.safetensors, tokenizer files) plus compress.json,
README.md and a manifest of ours, and the files of `private` where the family's have no words for the model. Folders of
the families in `families/` that transformers wrote load here as they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from compress.encoder.config.encoder import HEAD_NAMES, EncoderConfig, HeadConfig
from compress.encoder.config.schemes import POOLER
from compress.encoder.modules.layers import fill
from compress.encoder.modules.masks import require_pattern
from compress.encoder.modules.model import Model
from compress.encoder.modules.tensors import assign_tensors
from compress.errors import UserError, did_you_mean
from compress.modelfolder import meta, private, vocabulary, weights
from compress.modelfolder.family import stock_heads
from compress.modelfolder.fields import Fields
from compress.modelfolder.meta import DataNote, FolderMeta, Parent, RecipeNote
from compress.modelfolder.open import CONFIG, OpenedFolder, file_digest, open_folder
from compress.modelfolder.save import annotate, duplicate, save_model
from compress.modelfolder.sentence_pooling import MODULES, read_parts, read_tokenizer_length
from compress.storage import safe

__all__ = [
    "DataNote",
    "FolderInfo",
    "FolderMeta",
    "LoadedModel",
    "Parent",
    "RecipeNote",
    "annotate",
    "duplicate",
    "fingerprint",
    "inspect",
    "is_model_folder",
    "load_model",
    "refuse_exits",
    "same_vocabulary",
    "save_model",
    "vocabulary_digest",
]


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, and what its folder says.

    family: the model_type of its config.json.  meta: from compress.json, or made up from config.json for a folder of
    another tool.  notes: what a person should be told (converted numbers, new heads …), one line each.
    """

    model: Model
    config: EncoderConfig
    heads: Mapping[str, HeadConfig]
    family: str
    meta: FolderMeta
    path: Path
    tokenizer_files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the task head's answers, in order of their ids; empty without a task head."""
        return self.meta.label_names


@dataclass(frozen=True)
class FolderInfo:
    """What a folder holds, from its headers. disk_mb: 10⁶ bytes of the weight files.  stock_class: the transformers
    class that loads it, of a quantized model with the floats behind its integers; None where none has its shape.
    dtypes: as stored.  new_head: a head as this family has it, so that a stock class can still compute the model."""

    path: Path
    family: str
    stock_class: str | None
    config: EncoderConfig
    heads: Mapping[str, HeadConfig]
    label_names: tuple[str, ...]
    parameters: int
    parameters_without_embeddings: int
    disk_mb: float
    dtypes: tuple[str, ...]
    vocabulary_tokens: int | None
    meta: FolderMeta
    notes: tuple[str, ...]
    new_head: Callable[[HeadConfig], HeadConfig] = field(repr=False, compare=False)

    @property
    def is_embedder(self) -> bool:
        """Whether it is an embedding model, which answers with vectors."""
        return "task" in self.heads and self.heads["task"].kind == "embedding"

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text that it reads: as it was trained, else as its tokenizer says, else as it can."""
        positions = self.config.max_positions
        return min(self.meta.max_length or read_tokenizer_length(self.path) or positions, positions)


def load_model(
    path: Path | str,
    *,
    require: Collection[str] = (),
    keep: Collection[str] | None = None,
    new_heads: Mapping[str, HeadConfig] | None = None,
    dropout: float | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    exits: bool = False,
) -> LoadedModel:
    """The model of a folder, fp32, every tensor accounted for.

    require: heads that the checkpoint must hold.  keep: heads to carry over, None for all it holds.  new_heads: heads
    to initialise anew from `seed`, in place of what the checkpoint has under that name (and a pooler when one of them
    reads it and the checkpoint has none). Both are told in `notes`.  dropout: of hidden states, of attention and of the
    task head, None for what the checkpoint says.  exits: whether the caller can do with a task head that has early
    exits, which what changes a model cannot. Raises UserError for anything wrong, before
    anything large is allocated; nothing in the folder is executed or unpickled.
    """
    opened = open_folder(Path(path))
    fresh = dict(new_heads or {})
    _require(opened, require)
    kept = _kept(opened, keep, fresh)
    if not exits and any(head.exits for head in kept.values()):
        raise refuse_exits(path)
    config, notes = opened.description.encoder, list(opened.notes)
    if not config.pooler and _read_pooler(fresh):
        config = dataclasses.replace(config, pooler=True)
        notes.append(f"new pooler, initialized from seed {seed}: the checkpoint has none")
    heads = {**kept, **fresh}
    if dropout is not None:
        config = dataclasses.replace(config, dropout=dropout, attention_dropout=dropout)
        heads |= {"task": dataclasses.replace(heads["task"], dropout=dropout)} if "task" in heads else {}
    if config.pooler and "task" in fresh and not _read_pooler(heads):
        rounded = config.quantization and config.quantization.without(frozenset({POOLER}))
        config = dataclasses.replace(config, pooler=False, quantization=rounded)
        notes.append("the checkpoint's pooler was removed: no head uses it")
    notes += [f"new '{name}' head, initialized from seed {seed}" for name in fresh]
    left = [name for name in stock_heads(opened.description.heads) if name not in kept and name not in fresh]
    notes += [f"the checkpoint's '{name}' head was removed" for name in left]
    described = opened.description
    adapt, stored = opened.family.adapt_encoder, stock_heads(described.heads)
    if adapt(described.encoder, stored) == described.encoder:  # else its own file says
        config = adapt(config, stock_heads(heads))
    model = _build(config, heads, weights.read(opened.description, opened.stored), fresh, seed)
    require_pattern(model, str(opened.path))
    meta = opened.meta if "task" in kept else opened.meta.model_copy(update={"label_names": ()})
    return LoadedModel(
        model=(model if torch.device(device).type == "cpu" else model.to(device)).eval(),
        config=config,
        heads=model.head_configs,
        family=opened.family.model_type,
        meta=meta,
        path=opened.path,
        tokenizer_files=opened.tokenizer_files,
        notes=tuple(notes),
    )


def refuse_exits(path: Path | str) -> UserError:
    """For a model with early exits, where a model without is needed."""
    return UserError(
        "this model has early exits, which are not supported here", where=str(path),
        do="use its parent, and add exits last: compress cascade MODEL --exit-layers auto",
    )  # fmt: skip


def inspect(path: Path | str) -> FolderInfo:
    """What `load_model` would load, with the same checks but without reading a tensor."""
    opened = open_folder(Path(path), verify=False)
    config, heads = opened.description.encoder, opened.description.heads
    count = config.count_parameters() + sum(head.count_parameters(config) for head in heads.values())
    names = opened.values.get("architectures")
    return FolderInfo(
        path=opened.path,
        family=opened.family.model_type,
        stock_class=str(names[0]) if opened.stock and names else None,
        config=config,
        heads=heads,
        label_names=opened.meta.label_names,
        parameters=count,
        parameters_without_embeddings=count - config.count_embeddings(),
        disk_mb=sum(file.stat().st_size for file in opened.files) / 1e6,
        dtypes=tuple(sorted({entry.kind for entry in opened.stored.values()})),
        vocabulary_tokens=None if opened.vocabulary is None else len(opened.vocabulary),
        meta=opened.meta,
        notes=opened.notes,
        new_head=lambda head: opened.family.adapt(head, Fields(opened.values, str(opened.path / CONFIG))),
    )


def is_model_folder(path: Path | str) -> bool:
    """Whether this looks like a model folder: a config and safetensors weights, or a cascade of such folders.
    `inspect` and `cascade.read` say whether it is sound."""
    folder = Path(path)
    if meta.is_cascade(folder):
        return True
    files = (weights.SINGLE, weights.INDEX, private.WEIGHTS)
    return (folder / CONFIG).is_file() and any((folder / name).is_file() for name in files)


def fingerprint(path: Path | str) -> str:
    """sha256 over the files that decide what the model computes: weights, config, tokenizer. Not compress.json or
    README.md, so that measuring a model does not make it another one; of a cascade over its models and thresholds.
    Raises UserError when there are no weights."""
    folder = Path(path)
    if meta.is_cascade(folder):
        told = [file_digest(folder / meta.CASCADE), *(fingerprint(stage) for stage in sorted(folder.glob("stage-*")))]
        return hashlib.sha256("\n".join(told).encode()).hexdigest()
    if not (folder / CONFIG).is_file():
        raise UserError(f"no {CONFIG}: not a model folder", where=str(folder))
    names = [CONFIG, *(file.name for file in weights.weight_files(folder))]
    names += [name for name in (private.FILE, *vocabulary.FILES) if (folder / name).is_file()]
    lines = (f"{name} {file_digest(folder / name)}\n" for name in sorted(names))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def vocabulary_digest(path: Path | str) -> str | None:
    """sha256 of the (id, token) pairs of the folder's tokenizer; None when it has no tokenizer."""
    folder = Path(path)
    config = safe.read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    ours = meta.read(folder) is not None
    files = vocabulary.settled(vocabulary.read_files(folder), config, str(folder), ours=ours)
    tokens = vocabulary.tokens(files, str(folder))
    return None if tokens is None else vocabulary.digest(tokens)


def same_vocabulary(first: Path | str, second: Path | str) -> bool:
    """Whether two folders give every token the same id, so that their vocabulary logits can be compared.

    Raises UserError when one of them has no tokenizer.
    """
    digests = []
    for path in (first, second):
        if (digest := vocabulary_digest(path)) is None:
            raise UserError(
                "the folder has no tokenizer", where=str(path), why=f"looked for {vocabulary.FILES[0]}, vocab.txt"
            )
        digests.append(digest)
    return digests[0] == digests[1]


_ORIGIN = {
    "task": "fine-tune it first: compress finetune --model",
    "mlm": "pretrain it first: compress pretrain --model",
    "pair": "pretrain it first: compress pretrain --model",
}


def _require(opened: OpenedFolder, names: Collection[str]) -> None:
    heads = opened.description.heads
    for name in names:
        if name not in HEAD_NAMES.values():
            raise UserError(f"unknown head '{name}'", do=did_you_mean(name, HEAD_NAMES.values()))
        if name not in heads:
            if name == "task" and (opened.path / MODULES).is_file():
                read_parts(opened.path, opened.description.encoder.hidden)  # raises for what it cannot read
            raise UserError(
                f"the model has no '{name}' head",
                where=str(opened.path),
                why=f"heads: {', '.join(heads) or 'none'}",
                do=f"{_ORIGIN[name]} {opened.path}",
            )


def _kept(opened: OpenedFolder, keep: Collection[str] | None, fresh: Mapping[str, HeadConfig]) -> dict[str, HeadConfig]:
    heads = opened.description.heads
    if keep is not None:
        _require(opened, keep)
    return {name: head for name, head in heads.items() if name not in fresh and (keep is None or name in keep)}


def _read_pooler(heads: Mapping[str, HeadConfig]) -> bool:
    return any(head.needs_pooler for head in heads.values())


def _build(
    config: EncoderConfig,
    heads: Mapping[str, HeadConfig],
    state: Mapping[str, Tensor],
    fresh: Mapping[str, HeadConfig],
    seed: int,
) -> Model:
    """A model around the given tensors, not copies of them; what has no tensor is initialised from the seed."""
    with torch.device("meta"):
        model = Model(config, heads)
    wanted = set(model.state_dict())
    new = [f"heads.{name}." for name in fresh]
    if not any(name.startswith("encoder.pooler.") for name in state):
        new.append("encoder.pooler.")
    given = {name: t for name, t in state.items() if name in wanted and not name.startswith(tuple(new))}
    assign_tensors(model, given, partly=True)
    generator = torch.Generator("cpu").manual_seed(seed)
    modules: list[nn.Module] = [model.heads[name] for name in sorted(fresh)]
    if model.encoder.pooler is not None and "encoder.pooler." in new:
        modules.append(model.encoder.pooler)
    for module in modules:
        fill(module.to_empty(device="cpu"), config.initializer_range, generator)
    for name, tensor in model.state_dict().items():
        assert not tensor.is_meta, f"{name} was neither loaded nor initialised"
    return model.requires_grad_(True)
