"""`compress extend`: what it says of the longer model, and the tokenizer's longest text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from compress.commands.extend import _notes, _tokenizer_files
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.reshape.extend import extend_config
from compress.errors import UserError


def test_what_was_done_is_said(tiny_config: EncoderConfig) -> None:
    longer = extend_config(tiny_config, 64, None, None)
    assert _notes(tiny_config, longer) == [
        "positions extended from 32 to 64: the learned embeddings are repeated",
        "full attention: cost is quadratic in the length",
    ]
    windowed = extend_config(tiny_config, 2048, 16, 2)
    assert _notes(tiny_config, windowed)[1] == (
        "every token attends to 16 tokens on each side, and the first 2 have global attention"
    )
    sinusoidal = dataclasses.replace(tiny_config, positions="sinusoidal")
    assert "the sinusoids are continued" in _notes(sinusoidal, extend_config(sinusoidal, 64, None, None))[0]
    again = _notes(windowed, extend_config(windowed, 4096, None, None))
    assert len(again) == 1, "the window stays as it was"


def test_the_tokenizer_cuts_at_the_new_length() -> None:
    files = {"tokenizer_config.json": json.dumps({"model_max_length": 32, "name": "é"}).encode(), "vocab.txt": b"a"}
    made = _tokenizer_files(files, 64, "m")
    assert json.loads(made["tokenizer_config.json"]) == {"model_max_length": 64, "name": "é"}
    assert made["vocab.txt"] == b"a"
    assert json.loads(files["tokenizer_config.json"])["model_max_length"] == 32, "the model's own files stay"
    other = {"tokenizer_config.json": b'{"name": "x"}'}
    assert _tokenizer_files(other, 64, "m") == other, "no length is written where there was none"
    assert _tokenizer_files({}, 64, "m") == {}
    with pytest.raises(UserError, match=r"m/tokenizer_config\.json: not valid JSON"):
        _tokenizer_files({"tokenizer_config.json": b"{"}, 64, "m")
