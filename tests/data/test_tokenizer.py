"""Tokenizers: trained alike twice, saved so that transformers encodes the same, and hard to break."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.data.text import tokenizer_native
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.errors import UserError

TEXTS = [
    f"{a} {b} was not {c}, but the {d} loved it{e}"
    for a in ("The", "A", "Our")
    for b in ("waiter", "critic", "café", "naïve singer")
    for c in ("good", "unbelievably slow", "bad")
    for d in ("guests", "neighbours", "crowd")
    for e in (".", "!", " (or so he said) …", " 99% of the time")
]
KINDS = ("wordpiece", "bpe", "unigram")
ODD = [
    "",
    "   ",
    "naïve CAFÉ",
    "日本 語",
    "a\x00b",
    "x" * 500,
    "[MASK] of [SEP]",
    "emoji 🎉 here",
    "don't  stop\n\tnow",
]


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: Tokenizer.train(TEXTS, kind, 400) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_specials_come_first(kind, trained):
    tokenizer = trained[kind]
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert ids == (0, 1, 2, 3, 4)
    assert sorted(tokenizer.vocabulary.values()) == list(range(tokenizer.vocabulary_size))
    assert tokenizer.vocabulary_size <= 400
    made = tokenizer.encode_batch(["The waiter"], ["was good"], max_length=32)
    assert made.ids[0] == 2
    assert (made.ids == 3).sum() == 2
    first = int(np.flatnonzero(made.ids == 3)[0])
    assert made.segments.tolist() == [0] * (first + 1) + [1] * (len(made.ids) - first - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_and_encodes_the_same(kind, trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, data in trained[kind].files().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert" if kind == "wordpiece" else "distilbert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:20], *ODD]
    ours = trained[kind].encode_batch(texts, max_length=40)
    got = theirs(texts, truncation=True, max_length=40)["input_ids"]
    assert [ours.ids[a:b].tolist() for a, b in zip(ours.offsets, ours.offsets[1:])] == got
    pairs = list(reversed(texts))
    ours = trained[kind].encode_batch(texts, pairs, max_length=24)
    both = theirs(texts, pairs, truncation="longest_first", max_length=24)
    assert [ours.ids[a:b].tolist() for a, b in zip(ours.offsets, ours.offsets[1:])] == both["input_ids"]
    if "token_type_ids" in both:
        assert [ours.segments[a:b].tolist() for a, b in zip(ours.offsets, ours.offsets[1:])] == both["token_type_ids"]
    names = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(theirs, f"{n}_token_id") for n in names] == [getattr(trained[kind], f"{n}_id") for n in names]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_repeats_to_the_byte(kind, trained):
    script = (
        "import sys, hashlib, json\nfrom compress.data.text.tokenizer import Tokenizer\n"
        "files = Tokenizer.train(json.load(sys.stdin), sys.argv[1], 400).files()\n"
        "print(hashlib.sha256(b''.join(files[n] for n in sorted(files))).hexdigest())"
    )
    root = Path(__file__).parents[2]
    seen = {_sha(trained[kind]), _sha(Tokenizer.train(TEXTS, kind, 400))}
    ran = subprocess.run(
        [sys.executable, "-c", script, kind],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    seen.add(ran.stdout.strip())
    assert len(seen) == 1


def _sha(tokenizer: Tokenizer) -> str:
    import hashlib

    files = tokenizer.files()
    return hashlib.sha256(b"".join(files[n] for n in sorted(files))).hexdigest()


def test_unigram_repeats_its_pieces(trained):
    assert Tokenizer.train(TEXTS, "unigram", 400).vocabulary_sha == trained["unigram"].vocabulary_sha


def test_case_is_kept_when_asked():
    cased = Tokenizer.train(TEXTS, "wordpiece", 300, lowercase=False)
    assert any(t != t.lower() and not t.startswith("[") for t in cased.vocabulary)
    assert json.loads(cased.files()["tokenizer_config.json"])["do_lower_case"] is False


@pytest.mark.parametrize(
    ("texts", "kind", "size", "message"),
    [
        (TEXTS, "wordpeice", 300, "unknown kind of tokenizer 'wordpeice'; did you mean 'wordpiece'"),
        (TEXTS, "wordpiece", 40, "is too small for the characters of this text"),
        (TEXTS, "wordpiece", 3, "a vocabulary of 3 is too small for wordpiece; give 32 or more"),
        (TEXTS, "bpe", 200, "too small for bpe; give 262 or more"),
        ([], "wordpiece", 300, "there is no text to train a tokenizer on"),
        (["", " \n"], "bpe", 300, "there is no text to train a tokenizer on"),
    ],
)
def test_bad_training(texts, kind, size, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.train(texts, kind, size)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_files_round_trip(kind, trained, tmp_path):
    for name, data in trained[kind].files().items():
        (tmp_path / name).write_bytes(data)
    again = Tokenizer.load(tmp_path)
    assert again.files() == trained[kind].files()
    assert again.vocabulary_sha == trained[kind].vocabulary_sha
    assert again.fingerprint == trained[kind].fingerprint


def test_a_vocabulary_alone_is_enough(trained, tmp_path):
    tokenizer = trained["wordpiece"]
    (tmp_path / "vocab.txt").write_bytes(tokenizer.files()["vocab.txt"])
    again = Tokenizer.load(tmp_path)
    one, two = (t.encode_batch(TEXTS + ODD, max_length=64) for t in (tokenizer, again))
    assert one.ids.tolist() == two.ids.tolist()
    assert again.vocabulary_sha == tokenizer.vocabulary_sha
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path).fingerprint != again.fingerprint


def test_padding_and_truncation_are_left_out(trained):
    files = trained["wordpiece"].files()
    pipeline = json.loads(files["tokenizer.json"])
    pipeline["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    pipeline["padding"] = {
        "strategy": {"Fixed": 50_000_000},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    files["tokenizer.json"] = json.dumps(pipeline).encode()
    again = Tokenizer.from_files(files)
    assert json.loads(again.files()["tokenizer.json"])["padding"] is None
    assert len(again.encode_batch([TEXTS[0]], max_length=64).ids) > 4
    assert again.fingerprint == trained["wordpiece"].fingerprint


def _changed(trained: dict[str, Tokenizer], **change) -> dict[str, bytes]:
    files = trained["wordpiece"].files()
    return files | {"tokenizer.json": json.dumps(json.loads(files["tokenizer.json"]) | change).encode()}


def _replace(pattern: str, content: str) -> dict:
    return {"normalizer": {"type": "Replace", "pattern": {"String": pattern}, "content": content}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_replace("a", "b" * 1000), "makes texts grow too much"),
        (_replace("", "bbb"), "makes texts grow too much"),
        (_replace("a" * 5000, "b"), "a pattern of the tokenizer is too long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}}, "too many steps: 100, limit 64"),
        ({"added_tokens": [{"id": 4_000_000_000, "content": "x"}]}, "an added token has the id 4,000,000,000"),
        ({"added_tokens": [{"id": -1, "content": "x"}]}, "an added token has the id -1"),
        ({"model": {"type": "Unheard"}}, "cannot read this tokenizer"),
        ({"model": 7}, "cannot read this tokenizer"),
    ],
)
def test_hostile_files(change, message, trained):
    with pytest.raises(UserError, match=message):
        Tokenizer.from_files(_changed(trained, **change), where="folder")


def test_a_template_that_repeats_itself(trained):
    template = json.loads(trained["wordpiece"].files()["tokenizer.json"])["post_processor"]
    template["single"] *= 100
    with pytest.raises(UserError, match="the template adds too many tokens: 300, limit 16"):
        Tokenizer.from_files(_changed(trained, post_processor=template))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": b"{"}, "folder: tokenizer.json: this is not JSON"),
        ({"tokenizer.json": b"[" * 100_000}, "this is not JSON"),
        ({"tokenizer.json": b"[]"}, "not a JSON object: found list"),
        ({"tokenizer.json": b" " * ((64 << 20) + 1)}, "the file is too large: limit 64 MiB"),
        ({}, "folder: no tokenizer found: neither tokenizer.json nor vocab.txt"),
        ({"vocab.txt": b"a\nb\n"}, r"vocab.txt: this is not a BERT vocabulary: missing: \[PAD\]"),
        (
            {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n"},
            "not a BERT vocabulary: number of duplicate tokens: 1",
        ),
        ({"vocab.txt": b"\xff\xfe"}, "vocab.txt: this is not UTF-8 text"),
    ],
)
def test_broken_files(files, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.from_files(files, where="folder")


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer found: looked for tokenizer.json and vocab.txt"):
        Tokenizer.load(tmp_path)


def test_a_panic_of_the_native_code_is_an_error(trained, monkeypatch):
    class Panic(BaseException):
        """As pyo3's PanicException: not an Exception."""

    class Backend:
        def encode_batch_fast(self, *_, **__):
            raise Panic("regex blew up")

    tokenizer = Tokenizer.from_files(trained["wordpiece"].files())
    monkeypatch.setattr(tokenizer, "_limit", lambda *_, **__: Backend())
    with pytest.raises(UserError, match="the tokenizer failed on these texts: regex blew up"):
        tokenizer.encode_batch(["a"], max_length=8)


def test_a_vocabulary_that_a_models_table_does_not_hold(trained):
    tokenizer = trained["wordpiece"]
    tokenizer.check_fits(tokenizer.vocabulary_size)
    with pytest.raises(UserError, match=r"does not match the model: ids go to \d+, the model has 10 embeddings"):
        tokenizer.check_fits(10)


# --- encoding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, 0, 1, 2, 1 << 30])
def test_impossible_lengths(length, trained):
    with pytest.raises(UserError, match=rf"invalid maximum length of {length} tokens: allowed: 3"):
        trained["wordpiece"].encode_batch(["a"], max_length=length)


def test_length_above_the_positions():
    with pytest.raises(UserError, match=r"a maximum length of 600 tokens is above the model's 512 positions; give 512"):
        check_length(600, 512)
    check_length(512, 512)


@pytest.mark.thorough
def test_giant_texts_are_quick(trained):
    made = trained["wordpiece"].encode_batch(["word " * 400_000, "x" * 1_000_000], max_length=128)
    assert len(made.ids) <= 256
    assert made.cut >= 1


def test_cut_counts_rows_that_lost_tokens(trained):
    tokenizer = trained["wordpiece"]
    full = tokenizer.encode_batch(TEXTS[:10], max_length=512)
    lengths = np.diff(full.offsets)
    assert full.cut == 0
    limit = int(np.median(lengths))
    assert tokenizer.encode_batch(TEXTS[:10], max_length=limit).cut == int((lengths > limit).sum())


@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.integers(3, 20), st.booleans())
@settings(max_examples=scaled(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_encodes(trained, texts, limit, paired):
    texts = [t.encode("utf-8", "ignore").decode() for t in texts]
    for tokenizer in trained.values():
        if paired and limit < 5:
            continue
        made = tokenizer.encode_batch(texts, texts if paired else None, max_length=limit, words=True)
        lengths = np.diff(made.offsets)
        assert len(lengths) == len(texts)
        assert (lengths <= limit).all()
        assert (made.ids[made.offsets[:-1]] == tokenizer.cls_id).all()
        assert (made.ids[made.offsets[1:] - 1] == tokenizer.sep_id).all()
        assert made.words is not None
        if not any("[" in t for t in texts):  # a text may spell out a special token
            assert ((made.words < 0) == tokenizer.special_mask(made.ids)).all()
        assert made.ids.max() < tokenizer.vocabulary_size


def test_windows_build_a_tokenizer_once(trained, monkeypatch):
    """Tagged words and questions are answered through windows: a tokenizer for each text took longer than the model."""
    built = []
    build = tokenizer_native.build
    monkeypatch.setattr(tokenizer_native, "build", lambda *args: built.append(args) or build(*args))
    tokenizer = Tokenizer(trained["wordpiece"].files())
    built.clear()

    def windows(*texts, stride):
        return [(row, one.ids) for row, one in tokenizer.encode_windows(*texts, max_length=9, stride=stride)]

    first = windows(TEXTS[:2], stride=2)
    assert windows(TEXTS[:2], stride=2) == first
    assert len(built) == 1
    assert len(windows(TEXTS[:2], stride=4)) > len(first)
    assert windows(["", ""], TEXTS[:2], stride=2) != first
    assert len(built) == 3


def test_words_mark_the_pieces_of_a_word(trained):
    tokenizer = trained["wordpiece"]
    made = tokenizer.encode_batch(["the zzyzx waiter"], max_length=32, words=True)
    tokens = {i: t for t, i in tokenizer.vocabulary.items()}
    assert made.words is not None
    for i in range(1, len(made.ids)):
        if tokens[int(made.ids[i])].startswith("##"):
            assert made.words[i] == made.words[i - 1]
    assert len(set(made.words.tolist())) == 4  # three words and the special tokens
    assert tokenizer.decode(made.ids.tolist()) == "the zzyzx waiter" or tokenizer.unk_id in made.ids


def test_minilm(minilm):
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer.vocabulary_size == 30522
    made = tokenizer.encode_batch(["hello world"], max_length=512)
    assert made.ids.tolist() == [101, 7592, 2088, 102]
