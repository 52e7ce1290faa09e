"""The safetensors format, both ways: a strict door for files of others, and a writer whose bytes are reproducible.

The format: 8 bytes little-endian length of the header, the header in JSON (name → dtype, shape, data_offsets), then
the tensors' bytes without a gap. A file is checked completely against its header before a single tensor is read, and
is read through the same descriptor, so what was checked is what is loaded. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO, FileIO
from typing import TYPE_CHECKING, Any

from compress.errors import ExitCode, UserError, list_some, printable
from compress.storage import foreign
from compress.storage.disk import human_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_TENSORS = 10_000
MAX_HEADER = 10 << 20
_CHUNK = 8 << 20
_METADATA = "__metadata__"

# name in the file → (name in torch, bytes per element)
_DTYPES = {
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F32": ("float32", 4),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True)
class TensorInfo:
    """dtype as the file says it (F32, BF16 …).  start, end: bytes, counted from the first byte after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """tensors: in the order of their bytes.  data_start: where the first tensor's bytes begin in the file."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int


def read_safetensors_header(
    path: str | os.PathLike[str], *, max_tensors: int = MAX_TENSORS, max_header: int = MAX_HEADER
) -> Header:
    """Read and check the header, and that the file is exactly as long as it says; no tensor is read.

    Raises UserError with one line for a file that is missing, empty, something else (zip, pickle, HTML, git-lfs
    pointer …), truncated, too long, or whose header is oversized, malformed, ambiguous or disagrees with itself.
    """
    with foreign.open_plain_file(path) as (file, size):
        return _header(file, size, str(path), max_tensors, max_header)


def load_safetensors(
    path: str | os.PathLike[str],
    *,
    max_tensors: int = MAX_TENSORS,
    max_header: int = MAX_HEADER,
    names: Iterable[str] | None = None,
    finite: bool = False,
) -> dict[str, Tensor]:
    """The tensors of the file, on the CPU, each in memory of its own; only `names` when given.

    Raises UserError as `read_safetensors_header` does, for a name that is not there, and, with `finite`, for a NaN or
    an infinity, naming the tensor (exit 4).
    """
    with foreign.open_plain_file(path) as (file, size):
        header = _header(file, size, str(path), max_tensors, max_header)
        wanted = header.tensors if names is None else _choose(header, names, str(path))
        tensors = {name: _read(file, header.data_start, info, str(path)) for name, info in wanted.items()}
    if finite:
        require_finite(tensors, str(path))
    return tensors


def decode_safetensors(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of a file's content. where: what an error names. Raises UserError as `read_safetensors_header`."""
    with BytesIO(data) as file:
        header = _header(file, len(data), where, MAX_TENSORS, MAX_HEADER)
        return {name: _read(file, header.data_start, info, where) for name, info in header.tensors.items()}


def require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """UserError (data, exit 4) naming the first tensors that hold a NaN or an infinity."""
    bad = [name for name, tensor in tensors.items() if not _finite(tensor)]
    if bad:
        why = f"in {list_some(bad, 3)}"
        do = "the model was damaged during training: use an earlier checkpoint"
        raise UserError("contains NaN or infinity", where=where, why=why, do=do, code=ExitCode.DATA)


def encode(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[int, Iterator[memoryview]]:
    """(bytes of the whole file, its pieces in order). Wide dtypes come first, so that every tensor is aligned."""
    kinds = {torch_name: (name, width) for name, (torch_name, width) in _DTYPES.items()}
    rows: dict[str, Any] = {_METADATA: {key: metadata[key] for key in sorted(metadata)}} if metadata else {}
    _refuse_aliases(tensors)
    for name, tensor in tensors.items():
        if name == _METADATA or str(tensor.dtype).removeprefix("torch.") not in kinds:
            raise ValueError(f"cannot store {name!r} of dtype {tensor.dtype} in a safetensors file")
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        kind, _ = kinds[str(tensor.dtype).removeprefix("torch.")]
        rows[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return len(head) + end, _pieces(head, [tensors[name] for name in order])


def _pieces(head: bytes, tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    yield memoryview(head)
    for tensor in tensors:
        if tensor.numel():
            data = memoryview(_bytes_of(tensor.detach().cpu().contiguous()))
            yield from (data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK))


def _bytes_of(tensor: Tensor) -> Any:
    """The tensor's own memory as an array of bytes."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def _refuse_aliases(tensors: Mapping[str, Tensor]) -> None:
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            place = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if (other := seen.setdefault(place, name)) != name:
                raise ValueError(f"{other!r} and {name!r} are the same tensor: store it under one name")


# --- the header ---------------------------------------------------------------------------------------------------


def _header(file: FileIO | BytesIO, size: int, where: str, max_tensors: int, max_header: int) -> Header:
    head = file.read(foreign.HEAD)
    length = int.from_bytes(head[:8], "little")
    if len(head) < 9 or head[8:9] != b"{" or length > min(max_header, size - 8):
        raise _not_safetensors(head, size, length, where, max_header)
    text = head[8 : 8 + length] + file.read(max(0, 8 + length - len(head)))
    rows = foreign.parse_json(text, f"{where} (header)", depth=4)
    metadata = rows.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError("damaged safetensors header", where=where, why=f"{_METADATA} must map names to strings")
    if len(rows) > max_tensors:
        raise UserError("too many tensors", where=where, why=f"{len(rows)}, at most {max_tensors}")
    infos = {name: _info(name, row, where) for name, row in rows.items()}
    tensors = dict(sorted(infos.items(), key=lambda item: (item[1].start, item[1].end)))
    _check_offsets(tensors, size - 8 - length, where)
    return Header(tensors, metadata, 8 + length)


def _not_safetensors(head: bytes, size: int, length: int, where: str, max_header: int) -> UserError:
    # A plausible length comes first: the length 640 begins like a pickle.
    if head[8:9] == b"{" and length < 1 << 40:
        if length <= size - 8:
            why = f"{human_bytes(length)}, at most {human_bytes(max_header)}"
            return UserError("the safetensors header is too large", where=where, why=why)
        why = f"its header says {length} bytes, the file has {size}"
        return UserError("truncated safetensors file", where=where, why=why, do="copy or download it again")
    if kind := foreign.kind_of(head):
        return foreign.wrong_kind(kind, where, "a safetensors file")
    return UserError("not a safetensors file", where=where, why="it does not begin with a safetensors header")


def _info(name: str, row: Any, where: str) -> TensorInfo:
    try:
        if set(row) != {"dtype", "shape", "data_offsets"}:
            raise ValueError
        dtype, shape, (start, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
        numbers = (*shape, start, end)
        if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >= 1 << 62 or len(shape) > 64:
            raise ValueError
        if not isinstance(dtype, str):
            raise ValueError
    except (TypeError, ValueError):
        why = f"tensor '{printable(name, 80)}' has no valid dtype, shape and data_offsets"
        raise UserError("damaged safetensors header", where=where, why=why) from None
    if dtype not in _DTYPES:
        why = f"tensor '{printable(name, 80)}' is {printable(dtype, 20)}; known: {', '.join(_DTYPES)}"
        raise UserError("unknown dtype in a safetensors file", where=where, why=why)
    if math.prod(n for n in shape if n) >= 1 << 62:
        raise UserError("damaged safetensors header", where=where, why=f"tensor '{printable(name, 80)}' is too large")
    wanted = math.prod(shape) * _DTYPES[dtype][1]
    if end - start != wanted:
        why = f"tensor '{printable(name, 80)}', {dtype} of shape {list(shape)}, takes {wanted} bytes, not {end - start}"
        raise UserError("damaged safetensors header", where=where, why=why)
    return TensorInfo(dtype, shape, start, end)


def _check_offsets(tensors: Mapping[str, TensorInfo], available: int, where: str) -> None:
    reached, before = 0, "the header"
    for name, info in tensors.items():
        if info.start != reached:
            what = "overlap" if info.start < reached else "have a gap between them"
            why = f"{printable(before, 80)} and tensor '{printable(name, 80)}' {what}"
            raise UserError("damaged safetensors file", where=where, why=why)
        reached, before = info.end, f"tensor '{name}'"
    if available < reached:
        why, do = f"{reached - available} of {reached} bytes of tensors are missing", "copy or download it again"
        raise UserError("truncated safetensors file", where=where, why=why, do=do)
    if available > reached:
        why = f"{available - reached} bytes follow the last tensor"
        raise UserError("damaged safetensors file", where=where, why=why)


# --- the tensors --------------------------------------------------------------------------------------------------


def _choose(header: Header, names: Iterable[str], where: str) -> dict[str, TensorInfo]:
    wanted = set(names)
    if missing := sorted(wanted - set(header.tensors)):
        raise UserError("a tensor is missing", where=where, why=f"no '{missing[0]}' among {len(header.tensors)}")
    return {name: info for name, info in header.tensors.items() if name in wanted}


def _read(file: FileIO | BytesIO, data_start: int, info: TensorInfo, where: str) -> Tensor:
    import torch

    raw = torch.empty(info.end - info.start, dtype=torch.uint8)
    file.seek(data_start + info.start)
    rest = memoryview(_bytes_of(raw))
    while rest:
        count = file.readinto(rest)
        if not count:
            raise UserError("changed while it was read", where=where, why="the file was truncated")
        rest = rest[count:]
    if info.dtype == "BOOL":
        return (raw != 0).reshape(info.shape)  # a byte of 2 is no bool that torch knows
    return raw.view(_torch_dtype(info.dtype)).reshape(info.shape)


def _torch_dtype(dtype: str) -> torch.dtype:
    import torch

    return getattr(torch, _DTYPES[dtype][0])


def _finite(tensor: Tensor) -> bool:
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain = plain.float() if plain.element_size() == 1 else plain
    low, high = torch.aminmax(plain)  # one pass without a mask in memory; a NaN comes through
    return math.isfinite(low.item()) and math.isfinite(high.item())
