"""`compress extend --longformer`: a folder that transformers' Longformer classes load, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import family_cases as cases
import pytest
import torch
from torch import Tensor

from compress.cli.main import main
from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import inspect, load_model, save_model

LENGTH, WINDOW, POSITIONS = 40, 4, 64
THOROUGH = pytest.mark.thorough


def extend(source: Path, target: Path, *flags: str) -> int:
    size = ("--max-positions", str(POSITIONS), "--window", str(WINDOW))
    return main(["extend", str(source), *size, "--output", str(target), *flags])


def texts(pad_id: int) -> dict[str, Tensor]:
    """A text longer than the stock model's positions, and a short one."""
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])).long()
    ids = torch.randint(2, cases.VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(4))
    padded = ids * mask + pad_id * (1 - mask)
    return {"input_ids": padded, "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}


@pytest.mark.parametrize(
    ("family", "name", "made"),
    [
        ("bert", "BertForSequenceClassification", "LongformerForSequenceClassification"),
        pytest.param("bert", "BertForMaskedLM", "LongformerForMaskedLM", marks=THOROUGH),
        pytest.param("roberta", "RobertaForTokenClassification", "LongformerForTokenClassification", marks=THOROUGH),
        ("distilbert", "DistilBertForMaskedLM", "LongformerForMaskedLM"),
    ],
)
def test_transformers_computes_the_same(family: str, name: str, made: str, hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, family, name, tmp_path / "stock")
    tokens = "1" if "Sequence" in name else "0"
    assert extend(tmp_path / "stock", tmp_path / "own", "--global-tokens", tokens) == 0
    assert extend(tmp_path / "stock", tmp_path / "long", "--longformer") == 0
    assert inspect(tmp_path / "long").stock_class == made
    reference = cases.stock_load(hf, made, tmp_path / "long")
    heads = {"mlm"} if "Masked" in name else {"task"}
    for folder in ("own", "long"):
        model = load_model(tmp_path / folder).model.eval()
        cases.compare("longformer", model, reference, heads, texts(model.config.pad_id))


def test_global_tokens_that_a_caller_names_see_as_in_the_extended_model(hf: ModuleType, tmp_path: Path) -> None:
    """Of the bare class: its projections are copies of those that all tokens share."""
    cases.stock(hf, "bert", "BertModel", tmp_path / "stock")
    assert extend(tmp_path / "stock", tmp_path / "own", "--global-tokens", "1") == 0
    assert extend(tmp_path / "stock", tmp_path / "long", "--longformer") == 0
    ours = load_model(tmp_path / "own").model.eval()
    inputs = texts(ours.config.pad_id)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    first = torch.zeros_like(mask)
    first[:, 0] = 1
    with torch.no_grad():
        model = cases.stock_load(hf, "LongformerModel", tmp_path / "long")
        theirs = model(input_ids=ids, attention_mask=mask, global_attention_mask=first).last_hidden_state
        last = ours.forward_padded(ids, mask, None, Needs(last_hidden=True)).last_hidden
    torch.testing.assert_close(last[mask.bool()], theirs[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("heads", "flags", "message"),
    [
        ({}, ("--global-tokens", "1"), "it has 1 global tokens; transformers' class for its head has 0"),
        ({"task": HeadConfig("question_answering")}, (), "a number that differs from row to row"),
        ({"pair": HeadConfig("sentence_pair")}, (), "no Longformer class has a"),
    ],
)
def test_what_longformer_cannot_express_is_rejected(
    heads: dict[str, HeadConfig],
    flags: tuple[str, ...],
    message: str,
    tiny_config: EncoderConfig,
    toy_tokenizer_files: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_model(tmp_path / "m", Model(tiny_config, heads).initialize(1), tokenizer_files=toy_tokenizer_files)
    assert extend(tmp_path / "m", tmp_path / "long", "--longformer", *flags) == 2
    error = capsys.readouterr().err
    assert "--longformer: no Longformer class computes this model" in error
    assert message in error
    assert not (tmp_path / "long").exists()


def test_longformer_needs_a_window(
    tiny_config: EncoderConfig,
    toy_tokenizer_files: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_model(tmp_path / "m", Model(tiny_config, {}).initialize(1), tokenizer_files=toy_tokenizer_files)
    assert main(["extend", str(tmp_path / "m"), "--max-positions", "64", "--longformer", "--output", "x"]) == 2
    assert "it has no window; add --window" in capsys.readouterr().err
