"""The tokenizers of every family: roles instead of names, two separators, byte-level BPE and Unigram, old files."""

from __future__ import annotations

import json
from pathlib import Path

import foreign_tokenizers
import numpy as np
import pytest

from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.reading.corpus import open_corpus
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import tokenize
from compress.errors import UserError
from compress.modelfolder import vocabulary

TEXTS = [f"the {a} was {b} and I {c} it" for a in ("film", "plot") for b in ("good", "bad") for c in ("liked", "left")]
PAIR = ("the film was good", "I liked it, naïve as I am 日本")
TWICE = ("camembert", "gte", "longformer", "mpnet", "roberta", "xlm-roberta")
"""Families whose pairs have two separators between them."""
FAMILIES = ("albert", "bert", "deberta-v2", "distilbert", "electra", "ernie", "modernbert", "nomic_bert", *TWICE)


@pytest.fixture(scope="module")
def files() -> dict[str, dict[str, bytes]]:
    return {family: foreign_tokenizers.of_family(family, TEXTS) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_are_found_by_role_and_pairs_encoded_as_transformers_does(family, files, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer(files[family])
    named = foreign_tokenizers.ROBERTA if family in TWICE else None
    own = {"albert": foreign_tokenizers.ALBERT, "mpnet": foreign_tokenizers.MPNET}
    named = own.get(family) or named or foreign_tokenizers.BERT
    assert tokenizer.specials == {role: tokenizer.vocabulary[name] for role, name in named.items()}
    twice = family in TWICE
    assert tokenizer.between == (2 if twice else 1)
    for name, data in files[family].items():
        (tmp_path / name).write_bytes(data)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    single = tokenizer.encode_batch([PAIR[0]], max_length=64)
    assert single.ids.tolist() == reference(PAIR[0])["input_ids"]
    pair = tokenizer.encode_batch([PAIR[0]], [PAIR[1]], max_length=64)
    wanted = reference(*PAIR, return_token_type_ids=True)
    assert pair.ids.tolist() == wanted["input_ids"]
    assert pair.segments.tolist() == wanted["token_type_ids"]
    assert (pair.ids == tokenizer.sep_id).sum() == (3 if twice else 2)
    assert pair.segments.any() == (family not in (*TWICE, "modernbert"))
    assert vocabulary.tokens(files[family], "here") == tokenizer.vocabulary


@pytest.mark.parametrize("family", FAMILIES)
def test_words_and_specials_are_marked(family, files) -> None:
    tokenizer = Tokenizer(files[family])
    made = tokenizer.encode_batch(["the unbelievable film"], max_length=64, words=True)
    assert made.words is not None
    assert made.words[0] == made.words[-1] == -1
    inner = made.words[1:-1]
    assert inner[0] == 0
    assert inner[-1] == 2
    assert (np.diff(inner) >= 0).all()
    assert tokenizer.special_mask(made.ids).tolist() == (made.words == -1).tolist()


def test_roles_follow_the_template_where_names_mislead() -> None:
    """A vocabulary may hold [CLS] as a word of its own: what the tokenizer puts around a text decides."""
    made = foreign_tokenizers.unigram([*TEXTS, "[CLS] [SEP]"], foreign_tokenizers.ROBERTA)
    made.add_special_tokens(["[CLS]", "[SEP]"])
    foreign_tokenizers._surround(made, foreign_tokenizers.ROBERTA, segments=False, twice=True)
    tokenizer = Tokenizer({"tokenizer.json": made.to_str().encode()})
    assert (tokenizer.cls_id, tokenizer.sep_id) == (made.token_to_id("<s>"), made.token_to_id("</s>"))


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0. BPE")  # of older transformers
def test_vocab_json_and_merges_alone_make_robertas_tokenizer(files, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = json.loads(files["roberta"]["tokenizer.json"])["model"]
    merges = "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    old = {"vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt": f"#version: 0.2\n{merges}".encode()}
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    tokenizer = Tokenizer.load(tmp_path)
    assert vocabulary.tokens(old, "here") == tokenizer.vocabulary
    reference = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    for text in (*PAIR, "  two  blanks and<mask> here", ""):
        assert tokenizer.encode_batch([text], max_length=64).ids.tolist() == reference(text)["input_ids"]
    both = tokenizer.encode_batch([PAIR[0]], [PAIR[1]], max_length=64)
    assert both.ids.tolist() == reference(*PAIR)["input_ids"]
    assert not both.segments.any()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"vocab.json": b"[]"}, ["vocab.json", "this is not a JSON object"]),
        ({"vocab.json": b'{"a": "b"}'}, ["vocab.json", "does not map tokens to ids"]),
        ({"vocab.json": b'{"a": 0}'}, ["vocab.json", "not a RoBERTa vocabulary", "no pad token"]),
        ({"merges.txt": b"#version: 0.2\na b c\n"}, ["merges.txt", "the file is not a list of pairs", "a b c"]),
        ({"merges.txt": b"\xff"}, ["merges.txt", "this is not UTF-8 text"]),
        ({"merges.txt": b"zz qq\n"}, ["cannot read this tokenizer"]),
    ],
)
def test_broken_old_files(changes: dict[str, bytes], parts: list[str], files) -> None:
    model = json.loads(files["roberta"]["tokenizer.json"])["model"]
    old = {"vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt": b"#version: 0.2\n"}
    with pytest.raises(UserError) as error:
        Tokenizer({**old, **changes}, where="folder")
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spiece.model", "spm.model"])
def test_a_sentencepiece_model_alone_is_refused_with_the_line_that_converts_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x0a\x0e")
    with pytest.raises(UserError) as error:
        Tokenizer.load(tmp_path)
    line = str(error.value)
    assert f"the only tokenizer file is {name}" in line
    assert f"AutoTokenizer.from_pretrained('{tmp_path}').save_pretrained('{tmp_path}')" in line
    assert "\n" not in line


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pairs_of_a_corpus_are_parted_as_the_tokenizer_parts_them(family: str, files, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n\n".join("\n".join(TEXTS) for _ in range(3)) + "\n")
    tokenizer = Tokenizer(files[family])
    tokens = tokenize(open_corpus(str(tmp_path / "corpus.txt")), tokenizer, "train")
    source = CorpusBatches(
        tokens, tokenizer, block_length=32, rows_per_step=8, max_tokens=512, seed=0, pairs="sop", rate=0.01
    )
    (batch, *_) = source.step(0, 0)
    assert batch.max_length <= 32
    for first, last in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        row = batch.input_ids[first:last].tolist()
        at = [i for i, token in enumerate(row) if token == tokenizer.sep_id]
        assert row[0] == tokenizer.cls_id
        assert at[-1] == len(row) - 1
        assert len(at) == tokenizer.between + 1
        assert at[:-1] == list(range(at[0], at[0] + tokenizer.between))
