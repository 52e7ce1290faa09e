"""Writes a model folder: checked before, written whole or not at all, read back before it gets its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compress
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.masks import list_sparse, require_pattern
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import check_tied
from compress.errors import UserError
from compress.modelfolder import cross_encoder, labels, private, tokenizer_config, vocabulary, weights
from compress.modelfolder import family as families
from compress.modelfolder import meta as metas
from compress.modelfolder.card.facts import Facts
from compress.modelfolder.card.page import render
from compress.modelfolder.family import NATIVE, OLDER, Family, stock_heads
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.names import model_label
from compress.modelfolder.open import CONFIG, open_folder
from compress.modelfolder.sentence_head import EMBEDDING, head_files
from compress.modelfolder.sentence_pooling import MODULES, carried_length
from compress.storage import atomic, safe
from compress.storage.trees import link_or_copy

README = "README.md"
_WIRING = ("vocabulary", "hidden", "width", "layers", "groups", "norm", "first_norm", "bias", "gated", "activation")
_WIRING += ("linear_bias", "gate_bias", "sharing", "project_first")
_WIRING += ("positions", "relative_bias", "disentangled")
_WIRING += ("rotary_bases", "patterns", "global_projections", "max_positions", "position_offset", "segments", "pooler")
_WIRING += ("kept_tokens",)
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def save_model(
    path: Path | str,
    model: Model,
    *,
    tokenizer_files: Mapping[str, bytes],
    meta: FolderMeta | None = None,
    card: str | None = None,
    beside: Mapping[str, bytes] | None = None,
    reads: int | None = None,
    replace: bool = False,
) -> Path:
    """Write the folder; returns its path.

    The folder is a stock transformers one of `meta.family` where that family computes the model, else of another stock
    family. What their files have no words for lies in files of our own (`private`): where no family has the model's
    shape, all weights do, so that no class computes something else with them, and the card says why. Heads: config.json
    names the class of the task head where there is one; the others stay in the file under their stock names, where
    their own classes find them (and a class without a pooler reports one as unexpected).
    tokenizer_files: by name, written as other programs need them (`tokenizer_config.as_written`).  beside: by name,
    written as given, also in folders, as `folder/file`; what is one object under several names is one file.  card:
    README.md; None for the card made from `meta`.
    reads: the longest text in tokens that other programs give to the model; None: `meta.max_length`, of an embedding
    model whose files are in `beside` what these say, else what the tokenizer says.
    replace: allows a folder that we wrote to be replaced. Raises UserError for numbers that are not finite, a matrix
    that is called 2:4 sparse and is not, label names that do not fit, a tokenizer that does not fit the word table, an
    existing target.
    """
    target, meta = Path(path), meta or FolderMeta()
    require_pattern(model, str(target))
    state = _state(model, str(target))
    family, objection = families.choose(model.config, model.head_configs, meta.family or None)
    meta = _completed(meta, model, family, tokenizer_files, str(target))
    values = _config_values(model, family, meta, state)
    own = private.values_of(model.config, stock_heads(model.head_configs), fits=objection is None)
    meta = meta.model_copy(update={"format_version": metas.PRIVATE_VERSION if own else metas.FORMAT_VERSION})
    files = _tensor_files(model, state, None if objection else family)
    tokens = vocabulary.tokens(tokenizer_files, str(target))
    embeds = EMBEDDING in {head.kind for head in model.head_configs.values()}
    carried = beside or {}
    longest = reads or (carried_length(carried) if embeds and MODULES in carried else meta.max_length)
    positions = model.config.max_positions
    tokenizer_files = tokenizer_config.as_written(tokenizer_files, tokens, longest, positions, str(target))
    given = {**tokenizer_files, **carried}
    if embeds:
        given = head_files(model, meta, given)
    if cross_encoder.RANKING in {head.problem for head in model.head_configs.values()}:
        given = cross_encoder.without_embedder(given)
    if metas.CERTIFICATE not in given:  # of a parent's, the notes would contradict the card
        meta = meta.without_certificate()
    facts = _facts(model_label(target), model.config, model.head_configs, values, objection, given)
    tensors = [tensor for held in files.values() for tensor in held.values()]
    contents = {id(data): len(data) for data in given.values()}
    needed = sum(t.numel() * t.element_size() for t in tensors) + sum(contents.values())
    with atomic.new_folder(target, replace=replace, needed=needed) as temp:
        for name, held in files.items():
            atomic.write_safetensors(temp / name, held, {"format": "pt"})
        atomic.write_json(temp / CONFIG, values)
        if own:
            atomic.write_json(temp / private.FILE, own)
        _write_files(temp, given)
        atomic.write_json(temp / metas.FILE, meta.model_dump(mode="json"))
        atomic.write_text(temp / README, render(meta, facts) if card is None else card)
        _check_written(temp, model, files)
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
        "format_version": opened.meta.format_version,
    }
    meta = meta.model_copy(update=update)
    kept = [name for name in atomic.read_manifest(folder) if name not in (metas.FILE, README, *(beside or {}))]
    if card is None:
        config, heads = opened.description.encoder, opened.description.heads
        _, objection = families.choose(config, heads, opened.family.model_type)
        if not opened.stock and objection is None:
            objection = OLDER
        facts = _facts(model_label(folder), config, heads, opened.values, objection, (*kept, *(beside or {})))
        card = render(meta, facts)
    with atomic.new_folder(folder, replace=True) as temp:
        for name in kept:
            _carry(folder / name, temp / name)
        _write_files(temp, beside or {})
        atomic.write_json(temp / metas.FILE, meta.model_dump(mode="json"))
        atomic.write_text(temp / README, card)


def duplicate(source: Path, target: Path) -> None:
    """A folder that we wrote under a second name, in place of what we wrote there before; takes no room."""
    with atomic.new_folder(target, replace=True) as temp:
        for name in atomic.read_manifest(source):
            _carry(source / name, temp / name)


def _tensor_files(model: Model, state: Mapping[str, Tensor], family: Family | None) -> dict[str, dict[str, Tensor]]:
    """File → stored name → tensor: what a stock class of `family` knows in its file under its names, the rest in ours
    under ours; None: everything. A file without a tensor is left out."""
    heads = stock_heads(model.head_configs)
    names = {} if family is None else family.names(model.config, heads)
    fused = {} if family is None else family.list_fused_tensors(model.config, heads)
    split = {} if family is None else family.list_split_tensors(model.config, heads)
    if heads != model.head_configs:  # the tensors of an embedding lie in files of its modules
        state = {name: tensor for name, tensor in state.items() if not name.startswith("heads.task.")}
    known = {*names, *split, *(ours for parts in fused.values() for ours in parts)}
    swapped = frozenset[str]() if family is None else family.list_swapped_tensors(model.config)
    stock = {
        names[ours]: weights.swap_halves(t) if ours in swapped else t for ours, t in state.items() if ours in names
    }
    stock |= {theirs: torch.cat([state[name] for name in ours]) for theirs, ours in fused.items()}
    for ours, theirs in split.items():
        stock |= {name: part.clone() for name, part in zip(theirs, state[ours].chunk(len(theirs)), strict=True)}
    own = {ours: tensor for ours, tensor in state.items() if ours not in known}
    return {name: held for name, held in ((weights.SINGLE, stock), (private.WEIGHTS, own)) if held}


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """By name, also in folders right below. What is one object under several names is one file with several."""
    written: dict[int, Path] = {}
    for name, data in sorted(files.items()):
        (folder / name).parent.mkdir(exist_ok=True)
        if (first := written.get(id(data))) is not None:
            _carry(first, folder / name)
        else:
            atomic.write_bytes(folder / name, data)
            written[id(data)] = folder / name


def _state(model: Model, where: str) -> dict[str, Tensor]:
    """The model's tensors, each under one name; finite."""
    check_tied(model, weights.compute_expected_shapes(model.config, model.head_configs), where)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    seen: dict[int, str] = {}
    for name, tensor in state.items():
        if (first := seen.setdefault(tensor.data_ptr(), name)) != name and tensor.numel():
            raise UserError(
                f"'{first}' and '{name}' are the same tensor",
                where=where,
                why="config.json cannot describe this sharing, so loading would duplicate the tensor",
                do="share whole layers with layer_groups",
            )
    safe.require_finite(state, where)
    kinds = {tensor.dtype for tensor in state.values()}
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        raise UserError(
            f"the weights are {', '.join(sorted(map(str, kinds)))}",
            where=where,
            why="all weights must have the same float type",
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
            "max_length": None if model.config.is_static else meta.max_length,  # a static model cuts no text
            "label_names": _label_names(meta, model.head_configs.get("task"), where),
            "vocabulary_sha256": None if tokens is None else vocabulary.digest(tokens),
            "software": software,
        }
    )


def _label_names(meta: FolderMeta, task: HeadConfig | None, where: str) -> tuple[str, ...]:
    if task is None or task.kind == EMBEDDING:
        return ()
    if task.problem == cross_encoder.RANKING:
        return labels.RELEVANCE
    if task.kind == "question_answering":
        return labels.SPAN_NAMES
    names = meta.label_names or tuple(labels.default_names(task.labels))
    if len(names) != task.labels:
        raise UserError(f"{len(names)} label names for a head with {task.labels} labels", where=where)
    if len(set(names)) != len(names):
        raise UserError("two labels have the same name", where=where, why=", ".join(names[:10]))
    return names


def _config_values(model: Model, family: Family, meta: FolderMeta, state: Mapping[str, Tensor]) -> dict[str, Any]:
    heads = stock_heads(model.head_configs)
    values = family.config_values(model.config, heads)
    values["dtype"] = _DTYPES[next(iter(state.values())).dtype]
    task = model.head_configs.get("task")
    if task is None:
        return values
    if task.kind == EMBEDDING:
        return values | family.embedding_values(task)
    beside = cross_encoder.config_keys(meta) if task.problem == cross_encoder.RANKING else {}
    return values | labels.write_names(meta.label_names, task.problem) | beside


def _facts(
    name: str,
    config: EncoderConfig,
    heads: Mapping[str, HeadConfig],
    values: Mapping[str, Any],
    objection: str | None,
    files: Collection[str],
) -> Facts:
    count = config.count_parameters() + sum(head.count_parameters(config) for head in heads.values())
    return Facts(
        name=name,
        parameters=count,
        parameters_without_embeddings=count - config.count_embeddings(),
        layers=config.depth,
        hidden=config.hidden,
        heads=tuple(heads),
        stock_class=None if objection or values["model_type"] == NATIVE else values["architectures"][0],
        objection=objection,
        quantized=config.quantization is not None,
        onnx=metas.ONNX in files,
        certificate=metas.CERTIFICATE in files,
        sparse=len(list_sparse(config)),
        exits=tuple(exit.layer for exit in heads["task"].exits) if "task" in heads else (),
    )


def _check_written(temp: Path, model: Model, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """What lies on the disk must be this model: same description, same tensors, nothing stored twice."""
    opened = open_folder(temp)
    _must({file.name for file in opened.files} == files.keys(), "the files of tensors differ")
    for file, tensors in files.items():
        written = safe.load_safetensors(temp / file)
        _must(written.keys() == tensors.keys(), f"{file} and the model have different tensors")
        for name, tensor in tensors.items():
            _must(torch.equal(written[name], tensor.cpu()), f"{name} differs after reading it back")
    described = opened.description
    beside = set() if "task" in model.head_configs else {n for n in described.parameters if n.startswith("heads.task.")}
    exits = [heads["task"].exits for heads in (described.heads, model.head_configs) if "task" in heads]
    _must(len(set(exits)) < 2, "its files describe other early exits")
    _must(described.parameters - beside == set(model.state_dict()), "config.json describes different tensors")
    _must(
        described.encoder.quantization == model.config.quantization, "config.json describes different quantized modules"
    )
    for field in _WIRING:
        ours, theirs = (_wired(config, field) for config in (model.config, opened.description.encoder))
        _must(ours == theirs, f"{field} is {theirs} in config.json, not {ours}")


def _wired(config: EncoderConfig, field: str) -> object:
    """A field as far as it decides what is computed: positions that started as sinusoids are learned ones."""
    value = getattr(config, field)
    return "learned" if field == "positions" and value == "sinusoidal_start" else value


def _must(holds: bool, otherwise: str) -> None:
    """A bug, or a disk that lies: the folder is not given its name."""
    if not holds:
        raise RuntimeError(f"the written model folder differs from the model: {otherwise}")


def _carry(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    link_or_copy(source, target)
