"""Models over a cut vocabulary: the same answers to the bit where all pieces stayed, in transformers as well."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cut_tokenizers import OTHERS, TEXTS, cut, pieces_of
from foreign_tokenizers import of_family

from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import encode_texts
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.config.sharing import Sharing
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.encoder.reshape.word_rows import keep_rows
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.stages.prune_vocab.dependencies import take_apart

LABELS = ("bad", "good", "none")
SHAPE: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 2, "feed_forward": 48, "max_positions": 128}
BERT_HEADS = {"mlm": HeadConfig("masked_lm"), "task": HeadConfig("classification", labels=3)}
TABLES = {"embedding": 8}
ROBERTA = {"position_offset": 2, "pad_id": 1, "segments": 1, "pooler": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {"segments": 0, "pooler": False},
    "electra": {**TABLES, "pooler": False},
    "ernie": {},
    "albert": {**TABLES, "layer_groups": (0, 0)},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "deberta-v2": {"positions": "none", "segments": 0, "pooler": False, "disentangled": Disentangled(8, 128)},
    "mpnet": {"position_offset": 2, "pad_id": 1, "segments": 0, "pooler": False, "relative_bias": RelativeBias()},
    "gte": {"gate_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (160.0, 160.0)},
    "nomic_bert": {"linear_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (160.0, 160.0)},
    "modernbert": {
        "norm": "pre",
        "first_norm": False,
        "bias": False,
        "gated": True,
        "positions": "rotary",
        "segments": 0,
        "rotary_bases": (160.0, 10.0),
        "windows": (None, 3),
        "pooler": False,
    },
}


def model_of(family: str, rows: int, folder: Path, files: dict[str, bytes]) -> Path:
    """A folder of this family with both kinds of heads, random in every number."""
    from compress.modelfolder.family import load_families

    config = EncoderConfig.uniform(vocabulary=rows, **SHAPE, **FAMILIES[family])
    heads: dict[str, HeadConfig] = {}
    found = load_families()[family]
    objection = None
    for style in ("bert", "distilbert", "roberta", "electra", "modernbert", "deberta"):
        heads = {**BERT_HEADS, "task": HeadConfig("classification", labels=3, style=style)}  # pyright: ignore
        if family == "modernbert":  # its heads have one name in a file
            del heads["mlm"]
        if (objection := found.objection(config, heads)) is None:
            break
    assert objection is None, objection
    model = Model(config, heads).initialize(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)) * 0.1)
    meta = FolderMeta(family=family, task="classification", label_names=LABELS)
    return save_model(folder, model, tokenizer_files=files, meta=meta)


def answers(model: Model, tokenizer: Tokenizer, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Task logits (N, C) and vocabulary logits (T, V) of texts, one after the other; (0, V) without their head."""
    examples = encode_texts(tokenizer, texts, max_length=128)
    task, words = [], []
    with torch.no_grad():
        for row in range(len(texts)):
            (batch,) = evaluation_batches(examples.take([row]), 4096)
            output = model(batch, Needs(logits=True, mlm="all" if "mlm" in model.heads else None))
            assert output.logits is not None
            task.append(output.logits)
            if output.vocabulary is not None:
                words.append(output.vocabulary.logits())
    return torch.cat(task), torch.cat([torch.zeros(0, model.config.vocabulary), *words])


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_keeps_its_answers_and_loads_in_transformers(family: str, tmp_path: Path) -> None:
    files = of_family(family, TEXTS)
    pieces = take_apart(Tokenizer.from_files(files), "here")
    folder = model_of(family, pieces.tokenizer.vocabulary_size + 3, tmp_path / "whole", files)
    whole = load_model(folder)
    assert whole.family == family
    config = whole.config
    fixed = range(config.pad_id + 1) if config.position_offset else (config.pad_id,)
    choice, small = cut(pieces, TEXTS[:1], rows=fixed, coverage=100.0, characters="used")
    made = keep_rows(whole.model, torch.from_numpy(choice.kept)).eval()
    save_model(tmp_path / "cut", made, tokenizer_files=small.files(), meta=whole.meta)
    info, again = inspect(tmp_path / "cut"), load_model(tmp_path / "cut")
    assert (info.family, info.stock_class) == (family, inspect(folder).stock_class)
    assert info.config.vocabulary == len(choice.kept) == info.vocabulary_tokens
    assert choice.new_ids[config.pad_id] == info.config.pad_id

    encoded = {text: pieces.tokenizer.encode_plain([text]).ids for text in (*TEXTS[:5], *OTHERS)}
    kept = [text for text, ids in encoded.items() if (choice.new_ids[ids] >= 0).all()]
    assert TEXTS[0] in kept
    before, after = answers(whole.model, pieces.tokenizer, kept), answers(again.model, small, kept)
    assert torch.equal(before[0], after[0]), "bit for bit"
    torch.testing.assert_close(before[1][:, torch.from_numpy(choice.kept)], after[1], atol=1e-6, rtol=0)

    hf = pytest.importorskip("transformers")
    parity(hf, tmp_path / "cut", info.stock_class or "", small, again.model)


def parity(hf: ModuleType, folder: Path, name: str, small: Tokenizer, model: Model) -> None:
    """AutoTokenizer cuts as we do, and the stock class answers as we do."""
    hf.utils.logging.set_verbosity_error()
    theirs = hf.AutoTokenizer.from_pretrained(folder)
    stock = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert type(stock).__name__ == name
    for text in (*TEXTS[:5], *OTHERS):
        found = theirs(text, return_tensors="pt")
        mine = encode_texts(small, [text], max_length=128)
        assert found["input_ids"][0].tolist() == mine.ids.tolist(), text
        found.pop("token_type_ids", None)
        with torch.no_grad():
            torch.testing.assert_close(stock(**found).logits, answers(model, small, [text])[0], atol=1e-5, rtol=0)


def test_shared_factorized_and_uneven_models() -> None:
    """Whatever lies behind the table is the same to the bit; nothing is shared with the model before."""
    pieces = pieces_of("wordpiece")
    choice, small = cut(pieces, TEXTS[:1], coverage=90.0)
    base = EncoderConfig.uniform(vocabulary=pieces.tokenizer.vocabulary_size, **SHAPE)
    shapes = (LayerShape(1, 16, 24), LayerShape(2, 16, 48))
    sharing = Sharing(attention=(0, 0), feed_forward=(0, 0), own_vectors=True, residual_rank=2)
    for changes in ({"sharing": sharing, "embedding": 8, "project_first": True}, {"layers": shapes}):
        config = EncoderConfig(**{**{f: getattr(base, f) for f in base.__dataclass_fields__}, **changes})
        heads = {**BERT_HEADS, "mlm": HeadConfig("masked_lm", tied_projection=config.project_first)}
        whole = Model(config, heads).initialize(1).eval()
        made = keep_rows(whole, torch.from_numpy(choice.kept)).eval()
        before, after = answers(whole, pieces.tokenizer, TEXTS[5:6]), answers(made, small, TEXTS[5:6])
        if (choice.new_ids[pieces.tokenizer.encode_plain(TEXTS[5:6]).ids] >= 0).all():
            assert torch.equal(before[0], after[0])
        ids = torch.from_numpy(choice.kept)
        assert torch.equal(whole.encoder.embeddings.word.weight[ids], made.encoder.embeddings.word.weight)
        assert torch.equal(whole.state_dict()["heads.mlm.bias"][ids], made.state_dict()["heads.mlm.bias"])
        assert made.config.vocabulary == len(ids)
        ours, theirs = ({t.data_ptr() for t in m.state_dict().values()} for m in (whole, made))
        assert not ours & theirs
        assert made.encoder.embeddings.word.weight.requires_grad


def test_rows_that_cannot_be_taken(tiny_model: Model) -> None:
    with pytest.raises(
        UserError, match="here: these are not distinct rows of the word embeddings: the model has 81 rows"
    ):
        keep_rows(tiny_model, torch.tensor([0, 1, 1]), "here")
    with pytest.raises(UserError, match="not distinct rows"):
        keep_rows(tiny_model, torch.tensor([0, 10_000]), "here")
    with pytest.raises(UserError, match="row 0 of the word embeddings is the padding token's; keep it"):
        keep_rows(tiny_model, torch.tensor([1, 2]), "here")
    made = quantize_model(tiny_model, plan_quantization(QuantizationSpec(scheme="per-token"), tiny_model))
    with pytest.raises(
        UserError, match=r"quantized already, and removing rows of its word embeddings .* quantize last"
    ):
        keep_rows(made, torch.tensor([0, 1]), "here")
