"""Tokenizer files as they are written: no padding or truncation of their source, and the longest text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compress.errors import UserError
from compress.modelfolder.tokenizer_config import CONFIG, PIPELINE, SPECIAL, as_written

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"]


def data(value: Any) -> bytes:
    return json.dumps(value).encode()


def written(files: dict[str, bytes], reads: int | None = None, positions: int = 512) -> dict[str, Any]:
    return json.loads(as_written(files, VOCABULARY, reads, positions, "folder")[CONFIG])


@pytest.mark.parametrize(
    ("said", "reads", "expected"),
    [
        (128, None, 128),
        (1024, None, 512),
        (10**30, None, 512),
        (1e30, None, 512),
        (128, 64, 64),
        (128, 256, 256),
        (None, 1024, 512),
        ("128", None, 512),
        (True, None, 512),
        (0, None, 512),
    ],
)
def test_the_longest_text(said: Any, reads: int | None, expected: int) -> None:
    assert written({CONFIG: data({"model_max_length": said})}, reads)["model_max_length"] == expected
    assert written({CONFIG: data({})}, reads)["model_max_length"] == min(reads or 512, 512)


def test_files_that_need_no_change_stay_byte_by_byte() -> None:
    files = {
        CONFIG: b'{"model_max_length":  128,"a":1}',
        PIPELINE: b'{"truncation": null,  "padding": null}',
        "vocab.txt": b"a\n",
    }
    assert as_written(files, VOCABULARY, 128, 512, "folder") == files


def test_padding_and_truncation_are_not_inherited() -> None:
    pipeline = {"truncation": {"max_length": 8}, "padding": {"length": 8}, "model": {"vocab": {"é": 0}}}
    files = {PIPELINE: data(pipeline), CONFIG: data({"max_length": 8, "stride": 2, "do_lower_case": True})}
    before = dict(files)
    found = as_written(files, VOCABULARY, None, 512, "folder")
    assert json.loads(found[PIPELINE]) == pipeline | {"truncation": None, "padding": None}
    assert json.loads(found[CONFIG]) == {"do_lower_case": True, "model_max_length": 512}
    assert files == before


def test_special_tokens_of_a_folder_without_a_config() -> None:
    assert written({"vocab.txt": b""}) == {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "<mask>",
        "model_max_length": 512,
    }  # fmt: skip
    named = written({SPECIAL: data({"pad_token": "<pad>"})})
    assert (named["mask_token"], named["pad_token"], named["cls_token"]) == ("<mask>", "<pad>", "[CLS]")


def test_a_folder_without_a_tokenizer_stays_so() -> None:
    assert as_written({}, None, 128, 512, "folder") == {}
    assert CONFIG in as_written({"spiece.model": b""}, None, 128, 512, "folder")


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"{", "folder/tokenizer_config.json: not JSON: "), (b"[]", "folder/tokenizer_config.json: not a JSON object")],
)
def test_damaged_files(content: bytes, line: str) -> None:
    with pytest.raises(UserError) as error:
        written({CONFIG: content})
    assert str(error.value).startswith(line)
