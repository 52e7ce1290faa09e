"""Every tokenizer class that is read: the ids of transformers' AutoTokenizer, whatever the files of the folder say."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import foreign_tokenizers as foreign
import pytest
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Native
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from compress.data.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0"),  # transformers reads vocabulary files by a path
    pytest.mark.filterwarnings("ignore:.*tokenizer class you load:UserWarning"),
]

TEXTS = [
    f"The {a} was {b}, and I {c} it in Köln [NEW] on 7 May."
    for a in ("film", "plot", "naïve café")
    for b in ("good", "``bad''", "unbelievable")
    for c in ("liked", "LEFT", "日本")
]
MODELS = {
    "BertTokenizer": "bert", "RobertaTokenizer": "roberta", "HerbertTokenizer": "bert", "MPNetTokenizer": "mpnet",
    "XLMRobertaTokenizer": "xlm-roberta", "CamembertTokenizer": "camembert", "AlbertTokenizer": "albert",
    "DebertaV2Tokenizer": "deberta-v2",
}  # fmt: skip
VOCABULARY = ("BertTokenizer", "RobertaTokenizer", "HerbertTokenizer", "MPNetTokenizer")
MPNET = {**foreign.ROBERTA, "unk": "[UNK]"}
SWITCHES = (
    "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "keep_accents", "split_by_punct",
    "trim_offsets",
)  # fmt: skip


def herbert() -> Native:
    """BPE with word ends, behind BERT's way of cutting."""
    made = Native(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.BPEDecoder(suffix="</w>")  # pyright: ignore[reportAttributeAccessIssue]
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=200, special_tokens=names, end_of_word_suffix="</w>", show_progress=False),  # pyright: ignore[reportArgumentType]
    )
    return made


def small(kind: str) -> tuple[Native, dict[str, str]]:
    """A tokenizer with the vocabulary of a class, and its special tokens by role."""
    if kind == "BertTokenizer":
        return foreign.wordpiece(TEXTS), foreign.BERT
    if kind == "MPNetTokenizer":
        return foreign.wordpiece(TEXTS, MPNET), MPNET
    if kind == "RobertaTokenizer":
        return foreign.byte_bpe(TEXTS, foreign.ROBERTA), foreign.ROBERTA
    if kind == "HerbertTokenizer":
        return herbert(), foreign.ROBERTA
    names = {"AlbertTokenizer": foreign.ALBERT, "DebertaV2Tokenizer": foreign.BERT}.get(kind, foreign.ROBERTA)
    return foreign.unigram(TEXTS, names), names


def vocabulary_files(made: Native) -> dict[str, bytes]:
    """The files without tokenizer.json."""
    model = json.loads(made.to_str())["model"]
    if model["type"] == "WordPiece":
        tokens = sorted(made.get_vocab().items(), key=lambda item: item[1])
        return {"vocab.txt": "".join(f"{token}\n" for token, _ in tokens).encode()}
    merges = "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    return {"vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt": f"#version: 0.2\n{merges}".encode()}


@pytest.fixture(scope="module")
def trained() -> dict[str, tuple[Native, dict[str, str]]]:
    return {kind: small(kind) for kind in MODELS}


def write(folder: Path, files: dict[str, bytes], **tables: Any) -> Path:
    """Files as they are, and tables as JSON under their names without the ending."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


def compare(folder: Path, texts: list[str], pairs: list[str], length: int = 64) -> Tokenizer:
    """Ids and segments of texts and of pairs, truncated and not, against AutoTokenizer's."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    for limit in (length, 4096):
        made = ours.encode_batch(texts, max_length=limit)
        wanted = theirs(texts, truncation=True, max_length=limit, padding=False)["input_ids"]
        assert [made.ids[a:b].tolist() for a, b in zip(made.offsets, made.offsets[1:], strict=False)] == wanted
        made = ours.encode_batch(texts, pairs, max_length=limit)
        both = theirs(
            texts, pairs, truncation="longest_first", max_length=limit, padding=False, return_token_type_ids=True
        )
        rows = list(zip(made.offsets, made.offsets[1:], strict=False))
        assert [made.ids[a:b].tolist() for a, b in rows] == both["input_ids"]
        assert [made.segments[a:b].tolist() for a, b in rows] == both["token_type_ids"]
    return ours


tokens = st.sampled_from(["[NEW]", "[a b]", "film", "Ü", "<ent>", "##x", "▁x"])
flags = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
)
texts = st.lists(
    st.lists(
        st.sampled_from(
            ["the", "Film", "CAFÉ", " ", "  ", "\n\t", "日本", "[NEW]", "[new]", "[a b]", "<ent>", "Ü", "ü", "``bad''",
             "[MASK]", "<mask>", "</s>", "[SEP]", "don't", "…", "\u0301", "x" * 120, "７", "##x", "▁x"]
        ) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "ignore").decode()),
        max_size=10,
    ).map("".join),
    min_size=1, max_size=4,
)  # fmt: skip


@given(data=st.data())
@pytest.mark.parametrize("kind", MODELS)
@settings(
    max_examples=scaled(60), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_any_folder_gives_the_ids_of_transformers(kind: str, trained, data) -> None:
    made, names = trained[kind]
    alone = kind in VOCABULARY and data.draw(st.booleans(), label="vocabulary files alone")
    files = vocabulary_files(made) if alone else {"tokenizer.json": made.to_str().encode()}
    config: dict[str, Any] = {}
    if data.draw(st.booleans(), label="class is named") or kind == "HerbertTokenizer":
        config["tokenizer_class"] = kind + data.draw(st.sampled_from(["", "Fast"]))
    elif not alone and data.draw(st.booleans(), label="any tokenizer.json"):
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config |= {f"{role}_token": name for role, name in names.items()}
        if data.draw(st.booleans(), label="template"):
            whole = Native.from_str(made.to_str())
            foreign._surround(whole, names, segments=data.draw(st.booleans()), twice=data.draw(st.booleans()))
            files = {"tokenizer.json": whole.to_str().encode()}
    config |= data.draw(
        st.fixed_dictionaries({}, optional={name: st.booleans() for name in SWITCHES}), label="switches"
    )
    side = data.draw(st.sampled_from([None, "left", "right"]), label="side")
    if side:
        config["truncation_side"] = side
    added = data.draw(st.lists(tokens, unique=True, max_size=3), label="added")
    known = made.get_vocab()
    ids: dict[str, int] = {}
    for token in added:
        ids[token] = known[token] if token in known else len(known) + len([t for t in ids if t not in known])
    tables: dict[str, Any] = {"config": {"model_type": MODELS[kind]}}
    way = data.draw(st.sampled_from(["added_tokens", "decoder", "extra", "none"]), label="way")
    if added and way == "added_tokens":
        tables["added_tokens"] = ids
    elif added and way == "decoder":
        rows = {i: {"content": t, **data.draw(flags, label=t)} for t, i in ids.items()}
        if not alone:
            rows |= {known[name]: {"content": name, "special": True} for name in names.values()}
        config["added_tokens_decoder"] = {str(i): row for i, row in rows.items()}
    elif added and way == "extra":
        config[data.draw(st.sampled_from(["additional_special_tokens", "extra_special_tokens"]))] = added
    if data.draw(st.booleans(), label="special tokens map"):
        tables["special_tokens_map"] = {
            f"{role}_token": {"content": name, **data.draw(flags)} if data.draw(st.booleans()) else name
            for role, name in names.items()
        }
    if config or data.draw(st.booleans()):
        tables["tokenizer_config"] = config
    with tempfile.TemporaryDirectory() as place:
        folder = write(Path(place), files, **tables)
        some = data.draw(texts, label="texts")
        length = data.draw(st.integers(8, 20), label="length")
        compare(folder, some, some[::-1], length)
