"""Folders of models that the family's config.json has no words for: its own files stay the family's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import older_folders
import pytest
import torch

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder import private
from compress.modelfolder.folder import FolderMeta, annotate, fingerprint, inspect, load_model, save_model

HEADS = {"task": HeadConfig("classification", labels=3, style="bert")}
CONFIG = EncoderConfig.uniform(vocabulary=60, hidden=32, layers=2, heads=2, feed_forward=48, max_positions=16)
UNEVEN = EncoderConfig(vocabulary=60, hidden=32, layers=(LayerShape(2, 16, 40), LayerShape(1, 16, 24)))


def batch() -> Batch:
    ids = torch.randint(5, 60, (12,), generator=torch.Generator().manual_seed(0))
    return Batch(
        input_ids=ids,
        segment_ids=torch.zeros(12, dtype=torch.int64),
        position_ids=torch.arange(12),
        cu_seqlens=torch.tensor([0, 12]),
        max_length=12,
        row_ids=torch.tensor([0]),
    )


def rounded(config: EncoderConfig, scheme: str) -> Model:
    made = Model(config, HEADS).eval()
    made = quantize_model(made, plan_quantization(QuantizationSpec(scheme=scheme), made), "here").eval()  # type: ignore[arg-type]
    calibrate(made, [batch()])
    return made


def logits(model: Model) -> torch.Tensor:
    with torch.inference_mode():
        found = model(batch(), Needs(logits=True)).logits
    assert found is not None
    return found


@pytest.mark.parametrize("scheme", ["per-token", "static"])
def test_a_quantized_folder_is_the_familys_and_says_apart_what_is_quantized(
    scheme: str, hf: Any, tmp_path: Path
) -> None:
    made = rounded(CONFIG, scheme)
    folder = save_model(tmp_path / "m", made, tokenizer_files={}, meta=FolderMeta(family="bert"))
    plain = save_model(tmp_path / "float", Model(CONFIG, HEADS), tokenizer_files={})
    assert (folder / "config.json").read_bytes() == (plain / "config.json").read_bytes()
    assert set(json.loads((folder / private.FILE).read_text())) == {"compress_version", "quantization"}
    assert (folder / private.WEIGHTS).is_file() == (scheme == "static"), "ranges are tensors, which no class knows"

    loaded = load_model(folder)
    assert (loaded.config, loaded.family) == (made.config, "bert")
    assert torch.equal(logits(loaded.model), logits(made))
    floats = Model(CONFIG, HEADS).eval()
    floats.load_state_dict({name: p for name, p in made.state_dict().items() if name in floats.state_dict()})
    stock, told = hf.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values())
    with torch.inference_mode():
        theirs = stock.eval()(batch().input_ids[None]).logits
    torch.testing.assert_close(theirs, logits(floats), atol=1e-5, rtol=1e-5)
    assert not torch.equal(theirs, logits(made))
    card = (folder / "README.md").read_text()
    assert "which **computes with the float weights behind the integers**" in card
    assert inspect(folder).stock_class == "BertForSequenceClassification"


@pytest.mark.parametrize(
    "make",
    [lambda: rounded(CONFIG, "static"), lambda: rounded(UNEVEN, "static"), lambda: Model(UNEVEN, HEADS).eval()],
    ids=["quantized", "uneven quantized", "uneven"],
)
def test_folders_of_older_versions_are_read_and_annotated_as_ever(make: Callable[[], Model], tmp_path: Path) -> None:
    made = make()
    folder = save_model(tmp_path / "m", made, tokenizer_files={}, meta=FolderMeta(family="bert"))
    older_folders.as_older(folder)
    loaded = load_model(folder)
    assert loaded.config == made.config
    assert torch.equal(logits(loaded.model), logits(made))
    assert inspect(folder).stock_class is None
    new = save_model(tmp_path / "new", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert load_model(new).family == "bert"
    assert load_model(new).config == made.config
    annotate(new, loaded.meta)  # and one that has a manifest
    assert load_model(new).meta.family == "bert"


def test_what_says_that_it_is_quantized_is_a_part_of_the_model(tmp_path: Path) -> None:
    made = rounded(CONFIG, "per-token")
    folder = save_model(tmp_path / "m", made, tokenizer_files={})
    before = fingerprint(folder)
    annotate(folder, load_model(folder).meta.model_copy(update={"method": "quantize"}))
    assert fingerprint(folder) == before
    values = json.loads((folder / private.FILE).read_text())

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            load_model(folder)

    fewer = dict(list(values["quantization"].items())[1:])
    (folder / private.FILE).write_text(json.dumps(values | {"quantization": fewer}))
    refused("compress_config.json has changed since it was written")
    (folder / private.FILE).unlink()
    refused("compress_config.json is missing: manifest.json lists it; restore it")
    (folder / "manifest.json").unlink()
    for change, message in (
        ({"quantization": {}}, "compress_config.json: encoder.quantization: quantization must be an object of modules"),
        ({"quantisation": {}}, "compress_config.json: unknown key 'quantisation'; did you mean 'quantization'"),
        (
            {"compress_version": 2},
            "compress_config.json: unsupported format version 2: this version of compress reads 1; upgrade compress",
        ),
        ({"encoder": 3}, "encoder, heads and each head must be objects"),
    ):
        (folder / private.FILE).write_text(json.dumps(values | change))
        refused(message)


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({}, "bert"),
        ({"segments": 0}, "distilbert"),
        ({"position_offset": 2}, "roberta"),
        ({"positions": "rotary", "rotary_bases": (10_000.0,) * 2, "segments": 0, "pooler": False}, "modernbert"),
        ({"positions": "rotary", "rotary_bases": (10_000.0,) * 2, "gated": True, "linear_bias": False}, "nomic_bert"),
        ({"positions": "rotary", "rotary_bases": (10_000.0,) * 2, "gated": True, "gate_bias": False}, "gte"),
        ({"layer_groups": (0, 1)}, "bert"),
    ],
)
def test_the_config_of_what_no_class_computes_is_that_of_the_nearest_family(
    changes: dict[str, Any], family: str, hf: Any, tmp_path: Path
) -> None:
    layers = (LayerShape(2, 16, 40), LayerShape(1, 16, 24))
    model = Model(EncoderConfig(**{"vocabulary": 60, "hidden": 32, "layers": layers, "max_positions": 16, **changes}))
    for preferred in ("", "bert", "albert", "modernbert", "distilbert"):
        meta = FolderMeta(family=preferred)
        folder = save_model(tmp_path / "m", model, tokenizer_files={}, meta=meta, replace=True)
        assert load_model(folder).config == model.config
        read = hf.AutoConfig.from_pretrained(folder)
        assert (read.hidden_size, read.vocab_size) == (32, 60)
        if preferred == "":
            assert read.model_type == family


def test_tokenizer_files_say_what_the_model_reads(
    toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str], tmp_path: Path
) -> None:
    pipeline = json.loads(toy_tokenizer_files["tokenizer.json"])
    pipeline["truncation"] = {"max_length": 128, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    pipeline["padding"] = {
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    told = json.loads(toy_tokenizer_files["tokenizer_config.json"]) | {"model_max_length": 512, "max_length": 128}
    given = {"tokenizer.json": json.dumps(pipeline).encode(), "tokenizer_config.json": json.dumps(told).encode()}
    config = EncoderConfig.uniform(
        vocabulary=len(toy_vocabulary), hidden=32, layers=1, heads=2, feed_forward=48, max_positions=40
    )

    def written(name: str, files: dict[str, bytes], max_length: int | None, reads: int | None = None) -> Path:
        meta = FolderMeta(max_length=max_length)
        return save_model(tmp_path / name, Model(config, {}), tokenizer_files=files, meta=meta, reads=reads)

    def longest(folder: Path) -> int:
        return json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]

    folder = written("trained", given, 24)
    made = json.loads((folder / "tokenizer.json").read_text())
    assert (made["truncation"], made["padding"]) == (None, None)
    assert longest(folder) == 24
    assert "max_length" not in json.loads((folder / "tokenizer_config.json").read_text())
    assert longest(written("positions", given, None)) == 40, "no more than it has positions for"
    assert longest(written("embedder", given, 24, reads=30)) == 30
    again = load_model(folder)
    files = dict(again.tokenizer_files)
    same = written("again", files, 24)
    assert load_model(same).tokenizer_files == files, "byte by byte"
    assert fingerprint(same) == fingerprint(folder)
    bare = written("bare", {"tokenizer.json": given["tokenizer.json"]}, None)
    assert longest(bare) == 40
    assert json.loads((bare / "tokenizer_config.json").read_text())["pad_token"] == "[PAD]"
