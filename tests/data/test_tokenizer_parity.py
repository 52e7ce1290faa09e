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

from compress.data.text import tokenizer_names
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokenizer_builders import BUILDERS
from compress.errors import UserError

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


# --- the cases that were wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VOCABULARY)
def test_added_tokens_beside_vocabulary_files(kind: str, trained, tmp_path: Path) -> None:
    made, _ = trained[kind]
    new = {"[NEW]": len(made.get_vocab())}
    names = {"tokenizer_class": kind}
    folder = write(tmp_path / "a", vocabulary_files(made), added_tokens=new, tokenizer_config=names)
    write(folder, {}, config={"model_type": MODELS[kind]})
    ours = compare(folder, ["the [NEW] film"], ["[NEW]"])
    assert ours.vocabulary["[NEW]"] in ours.encode_batch(["the [NEW] film"], max_length=20).ids
    rows = {str(i): {"content": token, "special": True} for token, i in new.items()}
    folder = write(tmp_path / "b", vocabulary_files(made), tokenizer_config={**names, "added_tokens_decoder": rows})
    compare(write(folder, {}, config={"model_type": MODELS[kind]}), ["the [NEW] film"], ["[NEW]"])


def test_the_configuration_wins_over_the_normalizer(trained, tmp_path: Path) -> None:
    made, _ = trained["BertTokenizer"]
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    folder = write(tmp_path / "a", {"tokenizer.json": made.to_str().encode()}, tokenizer_config=config)
    ours = compare(write(folder, {}, config={"model_type": "bert"}), ["The Film was LEFT"], ["x"])
    lower = Tokenizer({"tokenizer.json": made.to_str().encode()}).encode_batch(["The Film was LEFT"], max_length=40)
    assert ours.encode_batch(["The Film was LEFT"], max_length=40).ids.tolist() != lower.ids.tolist()
    again = write(tmp_path / "b", ours.files(), config={"model_type": "bert"})
    assert compare(again, ["The Film"], ["x"]).files() == ours.files()  # nothing is left to settle


def test_a_folder_of_ours_keeps_the_tokenizer_that_its_model_was_trained_with(trained, tmp_path: Path) -> None:
    made, _ = trained["BertTokenizer"]
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    files = {"tokenizer.json": made.to_str().encode()}
    folder = write(tmp_path / "a", files, tokenizer_config=config, compress={})
    assert Tokenizer.load(folder).files()["tokenizer.json"] == files["tokenizer.json"]


@pytest.mark.parametrize("place", ["config", "tokenizer_config"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_class_that_is_not_built_is_rejected_by_name(place: str, alone: bool, trained, tmp_path: Path) -> None:
    made, _ = trained["BertTokenizer"]
    files = vocabulary_files(made) if alone else {"tokenizer.json": made.to_str().encode()}
    tables = {"config": {"model_type": "bert"}, "tokenizer_config": {}}
    tables[place] = {**tables[place], "tokenizer_class": "BertJapaneseTokenizer"}
    with pytest.raises(UserError, match="tokenizer class BertJapaneseTokenizer is not supported") as error:
        Tokenizer.load(write(tmp_path / "a", files, **tables))
    assert '"tokenizer_class": "PreTrainedTokenizerFast"' in str(error.value)


def test_every_class_of_transformers_is_built_or_rejected() -> None:
    """A new version may bring a class whose name would else be taken for one that transformers does not know."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    names = {name for name in TOKENIZER_MAPPING_NAMES.values() if name}
    names |= {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))}
    others = {f"{name}Tokenizer" for name in tokenizer_names.OTHERS}
    for name in names:
        found = tokenizer_class_from_name(name)
        kind = tokenizer_names.ALIASES.get(name.removesuffix("Fast"), name.removesuffix("Fast"))
        known = kind in BUILDERS or name in tokenizer_names.GENERIC or kind in others
        assert known or found is None, name
    for kind in BUILDERS:
        assert tokenizer_class_from_name(kind).__name__ == kind
    for model, kind in tokenizer_names.BY_MODEL.items():
        if model != "model2vec":  # of another library
            assert TOKENIZER_MAPPING_NAMES[model] == kind


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"added_tokens": {"[NEW]": 9000}}, r"added token '\[NEW\]' has the id 9,000: .* it gets the id"),
        ({"added_tokens": {"[NEW]": -1}}, "an added token has the id -1"),
        ({"added_tokens": {"[NEW]": "x"}}, "not a table of ids and tokens"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "not a table of ids and tokens"),
        ({"tokenizer_config": {"added_tokens_decoder": {"3": 7}}}, "this is not a token"),
        ({"tokenizer_config": {"do_lower_case": "no"}}, "'do_lower_case' is neither true nor false"),
        ({"tokenizer_config": {"truncation_side": "up"}}, "invalid 'truncation_side'"),
        ({"tokenizer_config": {"split_special_tokens": True}}, "'split_special_tokens' is not supported"),
        ({"tokenizer_config": {"tokenizer_class": "CamembertTokenizer"}}, "the tokenizer is not a CamembertTokenizer"),
        ({"tokenizer_config": {"tokenizer_class": 7}}, "'tokenizer_class' is not a string"),
    ],
)
def test_files_that_contradict_each_other(tables: dict[str, Any], message: str, trained, tmp_path: Path) -> None:
    made, _ = trained["BertTokenizer"]
    folder = write(
        tmp_path / "a", {"tokenizer.json": made.to_str().encode()}, **{"config": {"model_type": "bert"}, **tables}
    )
    with pytest.raises(UserError, match=message):
        Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["BertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut_as_if_they_had_been_read_whole(kind: str, side: str, trained, tmp_path: Path) -> None:
    made, _ = trained[kind]
    config = {"tokenizer_class": kind, "truncation_side": side}
    folder = write(tmp_path / "a", {"tokenizer.json": made.to_str().encode()}, tokenizer_config=config)
    write(folder, {}, config={"model_type": MODELS[kind]})
    blanks = " " * 20_000 if kind != "RobertaTokenizer" else " " * 1000  # there each blank is a token
    long = [f"{blanks}the film was good{blanks}", "good film " * 100, f"{'x' * 900} good {'y' * 900}", "the film"]
    ours = compare(folder, long, ["the film"] * len(long), 12)
    found = ours.encode_batch(["the film " * 1000, f"{blanks}good", "good"], max_length=12)
    assert found.cut == (3 if kind == "RobertaTokenizer" else 2) - 1
    assert ours.cuts_left == (side == "left")


def test_the_side_of_a_tokenizer_json_is_kept(trained, tmp_path: Path) -> None:
    made, _ = trained["BertTokenizer"]
    cut = Native.from_str(made.to_str())
    cut.enable_truncation(8, direction="left")
    folder = write(tmp_path / "a", {"tokenizer.json": cut.to_str().encode()}, config={"model_type": "bert"})
    ours = compare(folder, TEXTS[:3], TEXTS[3:6], 9)
    assert Tokenizer(ours.files()).cuts_left
    assert not Tokenizer({**ours.files(), "tokenizer_config.json": b"{}"}).cuts_left
