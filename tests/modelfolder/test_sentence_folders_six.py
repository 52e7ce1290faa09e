"""Folders as version 6 of sentence-transformers writes them, prompts and lower-casing, and names of families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_folders import as_sentence_transformers

from compress.console import Console
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.family import of_config
from compress.modelfolder.folder import save_model
from compress.modelfolder.sentence_files import sentence_files
from compress.modelfolder.sentence_pooling import part_files, read_parts
from compress.predict.embedder import Embedder
from compress.predict.rows.answers import ModelRequest

HIDDEN = 32
BASE = "sentence_transformers.base.modules."
TEXTS = ["The Film was good", "dull"]


def rewrite(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


@pytest.fixture
def six(tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path) -> Path:
    """Transformer, Pooling, Dense and Normalize with the keys of version 6.2."""
    folder = save_model(tmp_path / "six", tiny_model, tokenizer_files=toy_tokenizer_files)
    as_sentence_transformers(folder, HIDDEN, dense=8)
    classes = [
        f"{BASE}transformer.Transformer", "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        f"{BASE}dense.Dense", f"{BASE}normalize.Normalize",
    ]  # fmt: skip
    rows = json.loads((folder / "modules.json").read_text())
    rows = [{**row, "type": kind} for row, kind in zip(rows, classes, strict=True)]
    (folder / "modules.json").write_text(json.dumps(rows))
    pooling = {"embedding_dimension": HIDDEN, "pooling_mode": "mean", "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    rewrite(folder / "2_Dense" / "config.json", **names)
    (folder / "3_Normalize").mkdir(exist_ok=True)
    (folder / "3_Normalize" / "config.json").write_text(json.dumps(names))
    settings = {
        "transformer_task": "feature-extraction", "modality_config": {"text": {"method": "forward"}},
        "module_output_name": "token_embeddings",
    }  # fmt: skip
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    rewrite(folder / "tokenizer_config.json", model_max_length=20)
    return folder


def test_a_folder_of_version_six_gives_the_vectors_of_the_older_form(six: Path, tmp_path: Path) -> None:
    parts = read_parts(six, HIDDEN)
    assert (parts.pooling, parts.normalize, len(parts.denses), parts.max_length) == ("mean", True, 1, 20)
    found = Embedder(six)(TEXTS)
    for name, data in part_files(parts, HIDDEN).items():
        (six / name).parent.mkdir(exist_ok=True)
        (six / name).write_bytes(data)
    np.testing.assert_allclose(Embedder(six)(TEXTS), found, atol=1e-6)
    rewrite(six / "1_Pooling" / "config.json", pooling_mode=["cls"])
    assert read_parts(six, HIDDEN).pooling == "cls"
    assert np.abs(Embedder(six)(TEXTS) - found).max() > 1e-3


def test_a_narrower_model_gets_the_width_of_version_six(six: Path) -> None:
    (six / "modules.json").write_text(json.dumps(json.loads((six / "modules.json").read_text())[:2]))
    from compress.modelfolder.folder import inspect

    files = sentence_files(six, inspect(six).config, hidden=16)
    assert json.loads(files["1_Pooling/config.json"])["embedding_dimension"] == 16


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "1_Pooling",
            {"pooling_mode": "mean_sqrt_len_tokens"},
            "found mean_sqrt_len_tokens; use one of mean, cls, max",
        ),
        ("1_Pooling", {"pooling_mode": ["cls", "mean"]}, "found cls, mean"),
        ("1_Pooling", {"embedding_dimension": 3}, "embedding_dimension"),
        ("2_Dense", {"use_residual": True}, "use_residual"),
        ("2_Dense", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("3_Normalize", {"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_what_version_six_has_and_is_not_computed(file: str, changes: dict[str, Any], message: str, six: Path) -> None:
    rewrite(six / file / "config.json", **changes)
    with pytest.raises(UserError, match=message):
        read_parts(six, HIDDEN)


def test_the_default_prompt_comes_before_each_text(six: Path) -> None:
    prompts = six / "config_sentence_transformers.json"
    plain = Embedder(six)([f"query: {text}" for text in TEXTS])
    rewrite(prompts, default_prompt_name="query")
    np.testing.assert_allclose(Embedder(six)(TEXTS), plain, atol=1e-6)
    rewrite(six / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(UserError, match="a default prompt that is left out of the pooling is not supported"):
        read_parts(six, HIDDEN)
    for runtime in ("torch", "onnxruntime"):
        with pytest.raises(UserError, match="a default prompt that is left out of the pooling is not supported"):
            ModelRequest(six, embeddings=True, runtime=runtime).open(Console(quiet=True))
    rewrite(prompts, default_prompt_name="question")
    with pytest.raises(UserError, match=r"default_prompt_name is 'question'.*query, document"):
        read_parts(six, HIDDEN)


def test_texts_are_lower_cased_where_the_settings_say_so(six: Path) -> None:
    rewrite(six / "tokenizer_config.json", do_lower_case=False, tokenizer_class="BertTokenizer")
    cased = Embedder(six)(TEXTS)
    lower = Embedder(six)([text.lower() for text in TEXTS])
    assert np.abs(cased - lower).max() > 1e-3
    rewrite(six / "sentence_bert_config.json", do_lower_case=True)
    np.testing.assert_allclose(Embedder(six)(TEXTS), lower, atol=1e-6)
    parts = read_parts(six, HIDDEN)
    assert json.loads(part_files(parts, HIDDEN)["sentence_bert_config.json"])["do_lower_case"] is True


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("deberta", "deberta-v2"), ("xlm-roberta-xl", None), ("mobilebert", None), ("ibert", None), ("t5", None),
        ("XLM_RoBERTa", "xlm-roberta"), ("distillbert", "distilbert"), ("Bert", "bert"), ("modernbret", "modernbert"),
    ],
)  # fmt: skip
def test_only_a_mistyped_name_gets_a_hint(name: str, hint: str | None) -> None:
    with pytest.raises(UserError) as error:
        of_config({"model_type": name}, "config.json", list)
    assert ("did you mean" in str(error.value)) == (hint is not None)
    assert hint is None or f"did you mean '{hint}'?" in str(error.value)
    assert "known: albert, bert" in str(error.value)
