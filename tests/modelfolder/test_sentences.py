"""How a folder turns texts into vectors: read back as written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from compress.errors import UserError
from compress.modelfolder.sentence_pooling import MODULES, Dense, SentenceParts, part_files, read_parts

HIDDEN = 6


def written(folder: Path, parts: SentenceParts) -> Path:
    for name, data in part_files(parts, HIDDEN).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_parts_read_back_as_written(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    denses = (
        Dense(torch.randn(4, HIDDEN, generator=generator), torch.randn(4, generator=generator)),
        Dense(torch.randn(3, 4, generator=generator), None, tanh=True),
    )
    parts = SentenceParts("cls", denses, True, 77)
    found = read_parts(written(tmp_path, parts), HIDDEN)
    assert (found.pooling, found.normalize, found.max_length, found.width(HIDDEN)) == ("cls", True, 77, 3)
    x = torch.randn(5, HIDDEN, generator=generator)
    torch.testing.assert_close(found(x), parts(x), atol=0, rtol=0)
    wanted = torch.tanh((x @ denses[0].weight.T + denses[0].bias) @ denses[1].weight.T)
    torch.testing.assert_close(found(x), wanted / wanted.norm(dim=1, keepdim=True))


def test_a_folder_that_says_nothing_means_the_mean(tmp_path: Path) -> None:
    assert read_parts(tmp_path, HIDDEN) == SentenceParts("mean")


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
OTHER = {"pooling_mode_mean_tokens": False, "pooling_mode_mean_sqrt_len_tokens": True}
BAD = [
    (MODULES, {1: {"type": "sentence_transformers.models.CNN"}}, "module CNN is not supported"),
    (MODULES, {1: {"path": "../elsewhere"}}, "path is '../elsewhere': allowed: the name of a folder beside"),
    (MODULES, {0: {"path": "0_Transformer"}}, "an empty path: the encoder in the folder itself"),
    (POOLING, OTHER, "this pooling is not supported: found pooling_mode_mean_sqrt_len_tokens"),
    (POOLING, {"word_embedding_dimension": 5}, "word_embedding_dimension is 5: allowed: 6, the width of the encoder"),
    (DENSE, {"in_features": 9}, "in_features is 9: allowed: 6, the output width of the previous module"),
    (DENSE, {"out_features": 9}, "the tensors do not match config.json"),
    (DENSE, {"activation_function": "torch.nn.GELU"}, "activation_function is 'torch.nn.GELU'"),
    ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0"),
]


@pytest.mark.parametrize(("file", "change", "message"), BAD)
def test_what_is_not_computed_here_is_refused(tmp_path: Path, file: str, change: dict, message: str) -> None:
    written(tmp_path, SentenceParts("mean", (Dense(torch.eye(HIDDEN), torch.zeros(HIDDEN)),), max_length=16))
    values = json.loads((tmp_path / file).read_text())
    if isinstance(values, list):
        for place, more in change.items():
            values[place] |= more
    else:
        values |= change
    (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        read_parts(tmp_path, HIDDEN)


def test_a_list_that_pools_nothing_or_is_no_list(tmp_path: Path) -> None:
    (tmp_path / MODULES).write_text('[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    with pytest.raises(UserError, match="no Pooling module; add a Pooling module"):
        read_parts(tmp_path, HIDDEN)
    for text, message in (("{}", "not a list of modules"), ("[", "not JSON")):
        (tmp_path / MODULES).write_text(text)
        with pytest.raises(UserError, match=message):
            read_parts(tmp_path, HIDDEN)


def test_two_dense_modules_in_one_folder_are_refused(tmp_path: Path) -> None:
    """What is written of one would be the other's."""
    written(tmp_path, SentenceParts("mean", (Dense(torch.eye(HIDDEN)), Dense(torch.eye(HIDDEN)))))
    listed = json.loads((tmp_path / MODULES).read_text())
    listed[3]["path"] = listed[2]["path"]
    (tmp_path / MODULES).write_text(json.dumps(listed))
    with pytest.raises(UserError, match=r"modules\.json\[3\].*path.*a folder that no other Dense module has"):
        read_parts(tmp_path, HIDDEN)
