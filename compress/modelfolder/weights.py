"""The tensor files of a model folder: found, checked against what the config promises, then read; never unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import torch
from torch import Tensor

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError, format_count, printable
from compress.modelfolder import private
from compress.modelfolder.family import Description, Family
from compress.storage import safe
from compress.storage.disk import human_bytes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 1_000
_INDEX_BYTES = 10 * 2**20

# Files that only unpickling, or a library that we do not use, could read.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.bin.index.json")
_FOREIGN = ("*.h5", "*.msgpack", "*.onnx")

_KINDS = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor on disk. name: as the file spells it.  kind: safetensors' dtype, e.g. F32."""

    name: str
    file: Path
    shape: tuple[int, ...]
    kind: str


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: model.safetensors, or the shards that the index names, and our own.

    Raises UserError when there are none; pickles are refused with the command that converts them.
    """
    own = [folder / private.WEIGHTS] if (folder / private.WEIGHTS).is_file() else []
    if (folder / SINGLE).is_file():
        return [folder / SINGLE, *own]
    if (folder / INDEX).is_file():
        names = sorted(set(_weight_map(folder / INDEX).values()))
        return [*(_shard(folder, name) for name in names), *own]
    if own:
        return own
    for pattern in PICKLES:
        if found := sorted(folder.glob(pattern)):
            raise refuse_pickle(found[0])
    for pattern in _FOREIGN:
        if found := sorted(folder.glob(pattern)):
            raise UserError(
                f"no {SINGLE}, only {printable(found[0].name, 80)}",
                where=str(folder),
                do="convert it with transformers to safetensors",
            )
    raise UserError("no weights found", where=str(folder), why=f"looked for {SINGLE} and {INDEX}")


def refuse_pickle(path: Path) -> UserError:
    """A pickle runs code when it is read, so it is never read in this process; this names the command that converts
    one."""
    folder = path.parent
    return UserError(
        "pickle files are not supported because loading one can run code",
        where=str(path),
        why="only safetensors files are supported",
        do=f"convert it: compress convert {folder} --output {folder}-safetensors",
    )


def read_headers(files: Iterable[Path]) -> list[StoredTensor]:
    """What is stored, from the headers alone. Raises UserError for broken files."""
    found = [
        StoredTensor(name, file, tuple(entry.shape), entry.dtype)
        for file in files
        for name, entry in safe.read_safetensors_header(file).tensors.items()
    ]
    if len(found) > safe.MAX_TENSORS:
        raise UserError(f"too many tensors: {len(found)}", why=f"at most {safe.MAX_TENSORS}")
    return found


def canonical(stored: Iterable[StoredTensor], family: Family) -> dict[str, StoredTensor]:
    """Present-day stock name → what is stored, our own names as they are. Raises UserError for two spellings of one
    tensor."""
    found: dict[str, StoredTensor] = {}
    for entry in stored:
        name = entry.name if entry.file.name == private.WEIGHTS else family.canonical(entry.name)
        if name in found:
            twice = found[name].name
            raise UserError(f"'{_shown(entry.name)}' and '{_shown(twice)}' are the same tensor", where=str(entry.file))
        found[name] = entry
    return found


def compute_expected_shapes(encoder: EncoderConfig, heads: Mapping[str, HeadConfig]) -> Mapping[str, tuple[int, ...]]:
    """Our parameter name → shape of every tensor of the model, without allocating any."""
    return _expected_shapes(encoder, tuple(heads.items()))


@lru_cache(maxsize=64)  # a run opens the folder of each of its models many times
def _expected_shapes(
    encoder: EncoderConfig, heads: tuple[tuple[str, HeadConfig], ...]
) -> Mapping[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = Model(encoder, dict(heads))
    return MappingProxyType({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})


def check(description: Description, stored: Mapping[str, StoredTensor], where: str) -> list[str]:
    """What is stored must be what the config promises: names, shapes, kinds of number. Returns remarks worth saying.

    Raises UserError, naming the tensors, before anything is read.
    """
    names, promised = description.names, description.stored
    present = {
        **{kept: alias for alias, kept in description.copies.items() if alias in stored},
        **{n: n for n in stored},
    }
    missing = [name for name in promised if name not in present]
    spare = {*promised, *description.copies, *description.ignored}
    unexpected = [entry.name for name, entry in stored.items() if name not in spare]
    if missing or unexpected:
        told = [_listed(missing, "missing")] if missing else []
        told += [_listed(unexpected, "unexpected")] if unexpected else []
        do = "check that the weights belong to this config.json" if missing else "config.json describes a smaller model"
        raise UserError(" and ".join(told), where=where, do=do)
    shapes = compute_expected_shapes(description.encoder, description.heads)
    for ours, theirs in names.items():
        _check_one(stored[present[theirs]], shapes[ours])
    for theirs, ours in description.fused.items():
        _check_one(stored[theirs], (sum(shapes[name][0] for name in ours), *shapes[ours[0]][1:]))
    for ours, parts in description.split.items():
        for theirs in parts:
            _check_one(stored[theirs], (shapes[ours][0] // len(parts), *shapes[ours][1:]))
    for ours, theirs in description.first_rows.items():
        rows = max([1, *stored[theirs].shape[:1]])  # of any number
        _check_one(stored[theirs], (rows, *shapes[ours][1:]))
    kinds = {stored[present[theirs]].kind for theirs in promised} - {"F32"}
    return [f"weights stored as {_KINDS[kind]} were converted to float32" for kind in sorted(kinds)]


def read(description: Description, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Our parameter name → fp32 tensor. Raises UserError for numbers that are not finite and for untied copies."""
    _check_memory(description, stored)
    wanted = {*description.stored, *description.copies} & set(stored)
    by_file: dict[Path, dict[str, str]] = {}
    for name in wanted:
        by_file.setdefault(stored[name].file, {})[stored[name].name] = name
    tensors: dict[str, Tensor] = {}
    for file, canonical in sorted(by_file.items()):
        loaded = safe.load_safetensors(file, names=canonical, finite=True)
        tensors.update({canonical[name]: tensor.to(torch.float32) for name, tensor in loaded.items()})
        if any(stored[name].kind == "F64" for name in canonical.values()):  # may not fit into fp32
            safe.require_finite({name: tensors[name] for name in canonical.values()}, str(file))
    for alias, kept in description.copies.items():
        _settle_copy(tensors, stored, alias, kept)
    found = {ours: tensors[theirs] for ours, theirs in description.names.items()}
    found |= {ours: swap_halves(found[ours]) for ours in description.swapped}
    for ours, theirs in description.first_rows.items():
        found[ours] = found[ours] + tensors[theirs][0]
    return found | _rearrange(description, tensors)


def swap_halves(tensor: Tensor) -> Tensor:
    """The second half along the first dimension, then the first."""
    return torch.cat(tensor.chunk(2)[::-1])


def _rearrange(description: Description, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters that are not stored one by one: out of fused tensors, joined from parts, zeros; each a tensor of
    its own."""
    found = {ours: torch.cat([tensors[name] for name in parts]) for ours, parts in description.split.items()}
    if not description.fused and not description.zeros:
        return found
    shapes = compute_expected_shapes(description.encoder, description.heads)
    for theirs, ours in description.fused.items():
        parts = tensors[theirs].split([shapes[name][0] for name in ours])
        found |= {name: part.clone() for name, part in zip(ours, parts, strict=True)}
    return found | {name: torch.zeros(shapes[name]) for name in description.zeros}


def _settle_copy(tensors: dict[str, Tensor], stored: Mapping[str, StoredTensor], alias: str, kept: str) -> None:
    """A tied tensor that was written twice must agree with itself; written only as the copy, the copy is it."""
    if alias not in tensors:
        return
    if kept not in tensors:
        tensors[kept] = tensors[alias]
    elif not torch.equal(tensors[alias], tensors[kept]):
        layer = alias.startswith("encoder.layers.")
        raise UserError(
            f"'{_shown(stored[alias].name)}' differs from '{_shown(stored[kept].name)}'",
            where=_file_of(stored, alias),
            why="config.json ties these layers, but their stored tensors differ"
            if layer
            else "the output embeddings must be tied to the input embeddings",
            do="restore the original file" if layer else "untied models are not supported",
        )


def _check_one(entry: StoredTensor, wanted: tuple[int, ...]) -> None:
    if entry.shape != wanted:
        raise UserError(
            f"'{_shown(entry.name)}' has shape {list(entry.shape)}",
            where=str(entry.file),
            why=f"expected by config.json: {list(wanted)}",
        )
    if entry.kind not in _KINDS:
        raise UserError(
            f"'{_shown(entry.name)}' has dtype {entry.kind}",
            where=str(entry.file),
            why=f"supported: {', '.join(_KINDS)}",
        )


def _check_memory(description: Description, stored: Mapping[str, StoredTensor]) -> None:
    heads = description.heads.values()
    count = description.encoder.count_parameters() + sum(h.count_parameters(description.encoder) for h in heads)
    total = psutil.virtual_memory().total
    if 4 * count > total:
        raise UserError(
            f"not enough memory for a model of {count:,} parameters",
            where=_file_of(stored, next(iter(stored))),
            why=f"it needs {human_bytes(4 * count)}, this machine has {human_bytes(total)}",
            code=ExitCode.RESOURCES,
        )


def _weight_map(index: Path) -> dict[str, str]:
    rows: Any = safe.read_json(index, _INDEX_BYTES).get("weight_map")
    if not isinstance(rows, dict) or not rows or not all(isinstance(file, str) for file in rows.values()):
        raise UserError("no weight_map from tensor names to files", where=str(index))
    if len(set(rows.values())) > MAX_SHARDS:
        raise UserError(f"too many files: {len(set(rows.values()))}", where=str(index), why=f"at most {MAX_SHARDS}")
    return rows


def _shard(folder: Path, name: str) -> Path:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise UserError(
            f"invalid file name '{_shown(name)}'",
            where=str(folder / INDEX),
            why="it must be a safetensors file in the same folder",
        )
    if not (folder / name).is_file():
        raise UserError(f"file '{_shown(name)}' of the index is missing", where=str(folder))
    return folder / name


def _file_of(stored: Mapping[str, StoredTensor], name: str) -> str:
    entry = stored.get(name) or next(iter(stored.values()))
    return str(entry.file)


def _listed(names: list[str], word: str, most: int = 4) -> str:
    """'2 tensors missing (a, b)'."""
    shown = ", ".join(_shown(name) for name in sorted(names)[:most]) + (" …" if len(names) > most else "")
    return f"{format_count(len(names), 'tensor')} {word} ({shown})"


def _shown(name: str) -> str:
    return printable(name, 100)
