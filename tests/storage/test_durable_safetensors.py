"""Safetensors: equal to the library on good files, stricter and clearer than it on bad ones, never a pickle."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as library_load
from safetensors.torch import save as library_save
from torch import Tensor

from compress.errors import UserError
from compress.storage import atomic, safe

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def tensors_of_every_kind() -> dict[str, Tensor]:
    torch.manual_seed(0)
    found = {f"{dtype}": torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES}
    found |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 4), "turned": torch.randn(4, 6).T}
    found |= {"every other": torch.randn(10)[::2], "names ü ☃/../x": torch.randn(2)}
    return found


def same(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    plain = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(plain[0], plain[1])


def pack(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def refusal(path: Path, content: bytes, **options: Any) -> str:
    path.write_bytes(content)
    lines = []
    for read in (safe.read_safetensors_header, safe.load_safetensors):
        with pytest.raises(UserError) as caught:
            read(path, **options)
        assert caught.value.code == 2
        lines.append(caught.value.line())
    assert lines[0] == lines[1]
    assert "\n" not in lines[0]
    assert "weights_only" not in lines[0]
    return lines[0].removeprefix(str(path))


# --- good files


def test_what_we_write_the_library_reads_and_the_other_way_round(tmp_path: Path) -> None:
    tensors = tensors_of_every_kind()
    path = tmp_path / "ours.safetensors"
    atomic.write_safetensors(path, tensors, {"format": "pt", "a": "b"})
    ours, library = safe.load_safetensors(path), library_load(path.read_bytes())
    assert set(ours) == set(library) == set(tensors)
    assert all(same(ours[name], tensors[name]) and same(library[name], tensors[name]) for name in tensors)
    path.write_bytes(library_save({name: t.contiguous() for name, t in tensors.items()}, {"format": "pt"}))
    ours = safe.load_safetensors(path, finite=True)
    assert all(same(ours[name], tensors[name]) for name in tensors)
    assert safe.read_safetensors_header(path).metadata == {"format": "pt"}


def test_equal_tensors_give_equal_bytes_and_the_library_s_own(tmp_path: Path) -> None:
    tensors = tensors_of_every_kind()
    metadata = {str(i): str(i) for i in range(20)}
    atomic.write_safetensors(tmp_path / "a", tensors, metadata)
    atomic.write_safetensors(tmp_path / "b", dict(reversed(tensors.items())), dict(reversed(metadata.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    plain = {name: torch.arange(n, dtype=torch.float32) for n, name in enumerate(("b", "a", "c"))}
    atomic.write_safetensors(tmp_path / "c", plain, {"format": "pt"})
    assert (tmp_path / "c").read_bytes() == library_save(plain, {"format": "pt"})


def test_large_tensors_are_written_in_pieces(tmp_path: Path) -> None:
    tensors = {"large": torch.arange(5_000_000, dtype=torch.float32), "small": torch.ones(3, dtype=torch.uint8)}
    atomic.write_safetensors(tmp_path / "x", tensors)
    found = safe.load_safetensors(tmp_path / "x")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_loaded_tensors_are_aligned_writable_and_independent_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header["b"] = {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}
    path.write_bytes(pack(header, b"\7" + struct.pack("<2f", 1, 2)))
    found = safe.load_safetensors(path)
    path.write_bytes(b"")
    found["b"] += 1
    assert found["b"].tolist() == [2, 3]
    assert found["b"].data_ptr() % 4 == 0


def test_only_the_named_tensors_are_read(tmp_path: Path) -> None:
    atomic.write_safetensors(tmp_path / "x", {"a": torch.ones(2), "b": torch.ones(3)})
    assert list(safe.load_safetensors(tmp_path / "x", names=["b"])) == ["b"]
    with pytest.raises(UserError, match="a tensor is missing: no 'c' among 2"):
        safe.load_safetensors(tmp_path / "x", names=["b", "c"])


def test_a_file_without_tensors_is_fine(tmp_path: Path) -> None:
    atomic.write_safetensors(tmp_path / "x", {})
    assert safe.load_safetensors(tmp_path / "x") == library_load((tmp_path / "x").read_bytes()) == {}


def test_one_tensor_under_two_names_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    table = torch.ones(4, 2)
    with pytest.raises(ValueError, match="'decoder' and 'word' are the same tensor"):
        atomic.write_safetensors(tmp_path / "x", {"decoder": table, "word": table})
    with pytest.raises(ValueError, match=r"cannot store 'q' of dtype torch\.complex128"):
        atomic.write_safetensors(tmp_path / "x", {"q": torch.ones(1, dtype=torch.complex128)})
    atomic.write_safetensors(tmp_path / "x", {"top": table[:2], "bottom": table[2:]})
    assert os.listdir(tmp_path) == ["x"]


def test_a_parameter_is_stored_by_value(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    atomic.write_safetensors(tmp_path / "x", dict(layer.named_parameters()))
    assert torch.equal(safe.load_safetensors(tmp_path / "x")["weight"], layer.weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_numbers_that_are_not_finite_name_their_tensor(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    bad = torch.ones(100, dtype=dtype)
    bad[77] = value
    atomic.write_safetensors(tmp_path / "x", {"good": torch.ones(3), "layers.0.query": bad, "ids": torch.ones(2).int()})
    assert len(safe.load_safetensors(tmp_path / "x")) == 3
    with pytest.raises(UserError, match=r"contains NaN or infinity: in layers\.0\.query;") as caught:
        safe.load_safetensors(tmp_path / "x", finite=True)
    assert caught.value.code == 4


def test_many_bad_tensors_are_counted() -> None:
    tensors = {f"t{i}": torch.tensor([float("nan")]).to(torch.float8_e5m2) for i in range(5)}
    with pytest.raises(UserError, match="in t0, t1, t2 and 2 more"):
        safe.require_finite(tensors, "x")


# --- bad files

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
DAMAGED = ": damaged safetensors header: "
CONVERT = "; loading a pickle can run code, so pickles are not supported: convert it to safetensors in a sandbox"


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)}, buffer)
    return buffer.getvalue()


def plain_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"evil")
    return buffer.getvalue()


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ": the file is empty; copy or download it again"),
    "a few bytes": (b"\x10\0\0", ": not a safetensors file: it does not begin with a safetensors header"),
    "garbage": (bytes(range(200, 255)), ": not a safetensors file: it does not begin with a safetensors header"),
    "truncated header": (
        pack({"a": A}, bytes(8))[:30],
        ": truncated safetensors file: its header says 61 bytes, the file has 30; copy or download it again",
    ),
    "truncated tensors": (
        pack({"a": A, "b": B}, bytes(9)),
        ": truncated safetensors file: 3 of 12 bytes of tensors are missing; copy or download it again",
    ),
    "trailing bytes": (pack({"a": A}, bytes(11)), ": damaged safetensors file: 3 bytes follow the last tensor"),
    "hole": (
        pack({"a": A, "b": B | {"data_offsets": [10, 14]}}, bytes(14)),
        ": damaged safetensors file: tensor 'a' and tensor 'b' have a gap between them",
    ),
    "hole at the start": (
        pack({"a": A | {"data_offsets": [4, 12]}}, bytes(12)),
        ": damaged safetensors file: the header and tensor 'a' have a gap between them",
    ),
    "overlap": (
        pack({"a": A, "b": B | {"data_offsets": [4, 8]}}, bytes(8)),
        ": damaged safetensors file: tensor 'a' and tensor 'b' overlap",
    ),
    "twice the same bytes": (
        pack({"a": A, "b": A}, bytes(8)),
        ": damaged safetensors file: tensor 'a' and tensor 'b' overlap",
    ),
    "wrong dtype": (
        pack({"a": A | {"dtype": "F64"}}, bytes(8)),
        DAMAGED + "tensor 'a', F64 of shape [2], takes 16 bytes, not 8",
    ),
    "unknown dtype": (
        pack({"a": A | {"dtype": "F32\x1b[31m"}}, bytes(8)),
        ": unknown dtype in a safetensors file: tensor 'a' is F32\\x1b[31m; known: F64, C64, I64, U64, F32, I32, U32, "
        "F16, BF16, I16, U16, F8_E4M3, F8_E5M2, I8, U8, BOOL",
    ),
    "dtype is a list": (
        pack({"a": A | {"dtype": []}}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "duplicate key": (
        pack(b'{"a": %s, "a": %s}' % (json.dumps(A).encode(), json.dumps(A).encode()), bytes(8)),
        " (header):1:63: duplicate key 'a': first on line 1, column 2",
    ),
    "negative shape": (
        pack({"a": A | {"shape": [-2]}}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "boolean shape": (
        pack({"a": A | {"shape": [True, 2]}}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "offsets reversed": (
        pack({"a": A | {"data_offsets": [8, 0]}}, bytes(8)),
        DAMAGED + "tensor 'a', F32 of shape [2], takes 8 bytes, not -8",
    ),
    "a key missing": (
        pack({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "a key more": (
        pack({"a": A | {"evil": 1}}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "not a mapping": (
        pack({"a": 5}, bytes(8)),
        DAMAGED + "tensor 'a' has no valid dtype, shape and data_offsets",
    ),
    "huge empty shape": (
        pack({"a": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}}, b""),
        DAMAGED + "tensor 'a' is too large",
    ),
    "huge shape": (
        pack({"a": A | {"shape": [2**40]}}, bytes(8)),
        DAMAGED + "tensor 'a', F32 of shape [1099511627776], takes 4398046511104 bytes, not 8",
    ),
    "metadata": (
        pack({"__metadata__": {"a": 1}, "a": A}, bytes(8)),
        DAMAGED + "__metadata__ must map names to strings",
    ),
    "header not JSON": (
        pack(b'{"a" 1}', b""),
        " (header):1:6: not valid JSON: Expecting ':' delimiter, found '1}'",
    ),
    "header a bomb": (
        pack(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b""),
        " (header): nested too deeply: at most 4 levels",
    ),
    "pickle": (
        pickle.dumps({"a": 1}),
        ": not a safetensors file: it looks like a pickle" + CONVERT,
    ),
    "pickle, old": (
        pickle.dumps(OrderedDict(a=print), protocol=0),
        ": not a safetensors file: it looks like a pickle" + CONVERT,
    ),
    "zip": (
        plain_zip(),
        ": not a safetensors file: it looks like a zip archive, as PyTorch writes for .bin and .pt" + CONVERT,
    ),
    "torch.save": (
        torch_zip(),
        ": not a safetensors file: it looks like a zip archive, as PyTorch writes for .bin and .pt" + CONVERT,
    ),
    "a page": (
        b"<!doctype html>\n<html><body>Not found</body></html>",
        ": not a safetensors file: it looks like an HTML page; download the raw file, not the web page",
    ),
    "git-lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        ": not a safetensors file: it looks like a git-lfs pointer; run git lfs pull",
    ),
    "json": (b'{"error": "not found"}', ": not a safetensors file: it looks like JSON text"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(20), ": not a safetensors file: it looks like a gzip archive"),
    "numpy": (b"\x93NUMPY\1\0" + bytes(20), ": not a safetensors file: it looks like a NumPy array"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(20), ": not a safetensors file: it looks like an HDF5 file"),
    "gguf": (b"GGUF\3\0\0\0\1" + bytes(20), ": not a safetensors file: it looks like a GGUF model"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    assert refusal(tmp_path / "model.safetensors", content) == message


def test_the_library_refuses_no_file_that_we_accept(tmp_path: Path) -> None:
    """And the table above is not stricter by accident: it names only files the library refuses too, bar these."""
    stricter = {
        "a key more",  # the library ignores unknown keys
        "duplicate key",  # and takes the last of two
        "huge empty shape",
    }
    for case, (content, _) in BAD.items():
        if case in stricter:
            continue
        with pytest.raises((SafetensorError, ValueError, OverflowError, RuntimeError)):
            library_load(content)


def test_a_header_as_long_as_a_pickle_looks_is_no_pickle(tmp_path: Path) -> None:
    text = json.dumps({"a": A}).encode().ljust(0x0280)
    (tmp_path / "x").write_bytes(pack(text, bytes(8)))
    assert list(safe.load_safetensors(tmp_path / "x")) == ["a"]
    assert refusal(tmp_path / "y", pack(text, bytes(8))[:200]).startswith(": truncated safetensors file")


def test_limits_of_tensors_and_header(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    content = pack({f"t{i}": empty for i in range(10_001)}, b"")
    assert refusal(tmp_path / "x", content) == ": too many tensors: 10001, at most 10000"
    assert len(safe.load_safetensors(tmp_path / "x", max_tensors=20_000)) == 10_001
    large = pack(b"{" + b" " * (11 << 20) + b"}", b"")
    assert refusal(tmp_path / "x", large) == ": the safetensors header is too large: 11.5 MB, at most 10.5 MB"
    assert refusal(tmp_path / "x", pack({"a": A}, bytes(8)), max_header=10).endswith("61 bytes, at most 10 bytes")


def test_a_file_that_becomes_shorter_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compress.storage import tensorfile

    path = tmp_path / "x"
    atomic.write_safetensors(path, {"a": torch.ones(1000)})
    check = tensorfile._check_offsets

    def shorten(*arguments: Any) -> None:
        check(*arguments)
        os.truncate(path, 500)

    monkeypatch.setattr(tensorfile, "_check_offsets", shorten)
    with pytest.raises(UserError, match="changed while it was read: the file was truncated"):
        safe.load_safetensors(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    atomic.write_safetensors(tmp_path / "x", {"a": torch.ones(3), "b": torch.ones(2).int()}, {"format": "pt"})
    content = (tmp_path / "x").read_bytes()
    for cut in range(len(content)):
        refusal(tmp_path / "y", content[:cut])


@settings(max_examples=scaled(300), deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_read_exactly_as_the_library_reads_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(library_save({"a": torch.arange(3.0), "bb": torch.ones(2, 1).int()}, {"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(content)
    try:
        ours = safe.load_safetensors(path)
    except UserError:
        return
    theirs = library_load(bytes(content))
    assert set(ours) == set(theirs)
    assert all(same(ours[name], theirs[name]) for name in ours)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    """A canary that a load of any kind would create."""
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(canary),))

    archive = io.BytesIO()
    torch.save(Evil(), archive)
    legacy = io.BytesIO()
    torch.save(Evil(), legacy, _use_new_zipfile_serialization=False)
    for content in (pickle.dumps(Evil()), pickle.dumps(Evil(), 0), archive.getvalue(), legacy.getvalue()):
        assert refusal(tmp_path / "model.safetensors", content).endswith(CONVERT)
        assert not canary.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert canary.exists(), "the canary sings"
