"""Tokenizers that were cut: text whose pieces all stayed is cut as before, of every kind of tokenizer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cut_tokenizers import KINDS, OTHERS, TEXTS, counted, cut, pieces_of
from foreign_tokenizers import of_family
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.stages.prune_vocab.dependencies import take_apart
from compress.stages.prune_vocab.rebuild import rebuild_tokenizer_files
from compress.stages.prune_vocab.selection import Choice, always, choose
from compress.stages.prune_vocab.spec import Spec
from compress.stages.prune_vocab.usage import TokenizedTexts, loss

WORDS = sorted({word for text in (*TEXTS, *OTHERS) for word in text.split()})
LETTERS = "abcdefghilmnoprstuwyé .,-:0123"
texts_ = st.lists(st.one_of(st.sampled_from(WORDS), st.text(LETTERS, max_size=8)), max_size=7).map(" ".join)


def same(choice: Choice, before: Tokenizer, after: Tokenizer, text: str) -> bool:
    """Whether all of its pieces stayed; then both tokenizers must agree on it, there and back."""
    old, new = (t.encode_batch([text], max_length=512).ids for t in (before, after))
    lost = (choice.new_ids[old] < 0).any() or (old == before.specials.get("unk", -1)).any()
    if lost:
        return False
    assert choice.new_ids[old].tolist() == new.tolist(), text
    assert before.decode(old.tolist()) == after.decode(new.tolist()), text
    return True


@pytest.mark.parametrize("characters", ["all", "used"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_text_of_kept_pieces_is_cut_as_before(kind: str, characters: str, data: st.DataObject) -> None:
    pieces = pieces_of(kind)
    counted_on = data.draw(st.lists(texts_.filter(str.strip), min_size=1, max_size=4))
    how = data.draw(st.sampled_from([{"coverage": 100.0}, {"coverage": 70.0}, {"min_count": 2}]))
    try:
        choice, small = cut(pieces, counted_on, characters=characters, **how)
    except UserError as error:  # nothing but unknown characters was drawn, or all that there is
        assert error.what.startswith(("the text contains no token", "all "))  # noqa: PT017
        return
    assert small.vocabulary_size == len(choice.kept) < pieces.tokenizer.vocabulary_size
    unknown = pieces.unknown
    for text in counted_on:
        ids = pieces.tokenizer.encode_plain([text], words=False).ids
        if how == {"coverage": 100.0} and unknown not in ids:
            assert same(choice, pieces.tokenizer, small, text), "a text that was counted keeps its pieces"
    for text in data.draw(st.lists(texts_, max_size=8)):
        same(choice, pieces.tokenizer, small, text)
        same(choice, pieces.tokenizer, small, f"{text} {counted_on[0]}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_always_stays_and_what_it_spells(kind: str) -> None:
    pieces = pieces_of(kind)
    choice, small = cut(pieces, TEXTS[:1], min_count=1_000_000)
    assert len(choice.kept) == choice.least
    kept = {pieces.names[i] for i in choice.kept.tolist()}
    assert kept >= {pieces.names[i] for i in pieces.added | pieces.bytes | set(pieces.characters)}
    assert small.specials == {role: choice.new_ids[i] for role, i in pieces.tokenizer.specials.items()}
    if pieces.kind == "WordLevel":
        return
    for text in TEXTS[:3]:
        ids = small.encode_plain([text], words=False).ids
        assert small.specials["unk"] not in ids, "all can still be spelled"
        whole = pieces.tokenizer.encode_plain([text], words=False).ids
        assert len(ids) >= len(whole)
        if "byte" in kind or "unigram" in kind:
            assert small.decode(ids.tolist()) == pieces.tokenizer.decode(whole.tolist())


def test_a_bpe_piece_stays_with_all_that_it_is_merged_from() -> None:
    pieces = pieces_of("bpe with bytes for the rest")
    choice, small = cut(pieces, [" film film"], coverage=100.0, characters="used")
    kept = {pieces.names[i] for i in choice.kept.tolist()}
    assert kept > {"▁film", "▁fi", "▁f", "lm", "▁", "f", "i", "l", "m"}
    assert "▁pl" not in kept
    merges = json.loads(small.files()["tokenizer.json"])["model"]["merges"]
    assert sorted(map("".join, merges)) == ["lm", "▁f", "▁fi", "▁film"]
    both, _ = cut(pieces, [" pl pl"], coverage=100.0, characters="used")
    assert {pieces.names[i] for i in both.kept.tolist()} > {"pl", "▁p", "▁pl"}, "there are two ways to ▁pl"


def test_all_files_say_the_same() -> None:
    pieces = pieces_of("wordpiece with added tokens")
    choice, small = cut(pieces, TEXTS[:1], coverage=90.0)
    files, known = small.files(), small.vocabulary
    assert json.loads(files["added_tokens.json"]) == {t: known[t] for t in ("[ENTITY]", "filmography")}
    decoder = json.loads(files["tokenizer_config.json"])["added_tokens_decoder"]
    assert {row["content"]: int(i) for i, row in decoder.items()} == {
        t: known[t] for t in ("[PAD]", "[ENTITY]", "filmography")
    }
    assert max(known.values()) == len(choice.kept) - 1 == known["filmography"]
    old = take_apart(
        Tokenizer.from_files({"vocab.txt": "\n".join(sorted(pieces.ids, key=pieces.ids.__getitem__)).encode()}), "here"
    )
    choice, small = cut(old, TEXTS[:1], coverage=90.0)
    lines = small.files()["vocab.txt"].decode().splitlines()
    assert {line: i for i, line in enumerate(lines)} == small.vocabulary


def test_vocabulary_and_merges_of_older_folders() -> None:
    whole = json.loads(of_family("roberta", TEXTS)["tokenizer.json"])["model"]
    files = {
        "vocab.json": json.dumps(whole["vocab"]).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in whole["merges"])]).encode(),
        "sentencepiece.bpe.model": b"of another tokenizer",
    }
    _, small = cut(take_apart(Tokenizer.from_files(files), "here"), TEXTS[:2], coverage=95.0)
    made = small.files()
    assert "sentencepiece.bpe.model" not in made
    assert json.loads(made["vocab.json"]) == small.vocabulary
    alone = Tokenizer.from_files({name: made[name] for name in ("vocab.json", "merges.txt")})
    for text in TEXTS[:5]:
        assert alone.encode_plain([text]).ids.tolist() == small.encode_plain([text]).ids.tolist()


def test_the_lowest_score_stays_so_that_unknown_characters_cost_what_they_did() -> None:
    rows = [("<unk>", 0.0), ("a", -2.0), ("▁", -2.0), ("xyz", -20.0), ("x", -3.0), ("z", -3.0), ("low", -30.0)]
    made = Library(models.Unigram([*rows, ("▁a", -1.5)], unk_id=0))
    pieces = take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")
    choice, small = cut(pieces, ["xyz a"], coverage=100.0)
    assert "low" in {pieces.names[i] for i in choice.kept.tolist()}
    assert (
        choice.new_ids[pieces.tokenizer.encode_plain(["axyz"]).ids].tolist()
        == small.encode_plain(["axyz"]).ids.tolist()
    )


# --- what is refused ----------------------------------------------------------------------------------------------


def _refused(made: Library, message: str) -> None:
    with pytest.raises(UserError, match=message):
        take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")


def test_tokenizers_that_cannot_be_rebuilt() -> None:
    random = Library(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    _refused(random, "this BPE tokenizer drops merges at random")
    twice = Library(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("a", -2.0)], unk_id=0))
    _refused(twice, "the tokenizer has a duplicate token and cannot be rebuilt")


def test_ids_with_gaps_that_the_library_would_close() -> None:
    made = Library(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2, "ab": 3}, unk_token="[UNK]"))
    made.add_special_tokens(["[X]"])
    pieces = take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")
    with pytest.raises(UserError, match=r"the tokenizer cannot be rebuilt: '\[X\]' would have the id"):
        rebuild_tokenizer_files(pieces, np.array([-7, 0, 1, 2, 4]), "here")


def test_characters_that_would_be_lost_without_a_trace() -> None:
    made = Library(models.BPE({"a": 0, "b": 1, "ab": 2, "c": 3}, [("a", "b")]))
    pieces = take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")
    with pytest.raises(UserError, match=r"neither an unknown token nor byte fallback.*set characters: all"):
        cut(pieces, ["a"], coverage=100.0, characters="used")
    assert len(cut(pieces, ["a"], coverage=100.0)[0].kept) == 3


def test_a_tokenizer_that_does_more_than_it_says_is_found_out() -> None:
    ids, new = np.array([1, 2, 3]), np.array([0, 1, 2, 3])
    before = TokenizedTexts(ids, np.array([0, 3]), np.zeros(3, bool), np.zeros(1, bool))
    after = TokenizedTexts(np.array([1, 3]), np.array([0, 2]), np.zeros(2, bool), np.zeros(1, bool))
    with pytest.raises(UserError, match="here: the tokenizer cannot be rebuilt: text 1 of the held-out ones"):
        loss(before, after, new, None, "here")


# --- how much is kept ---------------------------------------------------------------------------------------------


def test_coverage_count_and_size() -> None:
    pieces = pieces_of("wordpiece")
    counts = counted(pieces, TEXTS)
    by_count, _ = cut(pieces, TEXTS, min_count=6)
    always = {i for i in by_count.kept.tolist() if counts[i] < 6}
    assert always <= pieces.added | pieces.characters.keys()
    assert {i for i in pieces.names if counts[i] >= 6} <= set(by_count.kept.tolist())
    half, _ = cut(pieces, TEXTS, coverage=80.0)
    whole, _ = cut(pieces, TEXTS, coverage=100.0, characters="used")
    assert 0.8 <= half.coverage < whole.coverage == 1.0
    assert len(half.kept) < len(whole.kept)
    rarest = min(
        (i for i in half.kept.tolist() if i not in pieces.added | pieces.characters.keys()), key=counts.__getitem__
    )
    assert half.coverage - counts[rarest] / counts.sum() < 0.8, "no piece more than needed"
    sized, small = cut(pieces, TEXTS, size=150)
    assert (len(sized.kept), small.vocabulary_size) == (150, 150)
    assert {pieces.names[i] for i in sized.kept.tolist()} >= {pieces.names[i] for i in np.flatnonzero(counts > 8)}
    bpe = pieces_of("byte-level bpe")
    assert len(cut(bpe, TEXTS, size=300)[0].kept) == 300


def test_what_no_text_can_hold_comes_last() -> None:
    names = ["[UNK]", "[unused0]", "[unused1]", "a", "##a", "aa", "aaa", "##aa"]
    made = Library(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    pieces = take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")
    assert cut(pieces, ["a"], size=5)[0].kept.tolist() == [0, 3, 4, 5, 6]
    assert cut(pieces, ["a"], size=7)[0].kept.tolist() == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"size": 5},
            r"size: a vocabulary of 5 tokens: the minimum is \d+: special and added tokens, \d+ single",
        ),
        ({"size": 5000}, r"size: a vocabulary of 5,000 tokens: the model has \d+; give less"),
        ({"min_count": 1}, r"all \d+ tokens are needed, so nothing can be removed"),
    ],
)
def test_amounts_that_cannot_be(asked: dict[str, int], message: str) -> None:
    pieces = pieces_of("wordpiece")
    counts = np.ones(pieces.tokenizer.vocabulary_size, dtype=np.int64)
    spec = Spec.model_validate({"kind": "prune_vocab", **asked})
    with pytest.raises(UserError, match=message):
        choose(pieces, counts, always(pieces, counts, spec, (0,), "here"), spec, "here")


def test_a_vocabulary_of_characters_is_cut_to_those_of_the_text() -> None:
    names = ["[UNK]", "好", "差", "的", "很"]
    made = Library(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    pieces = take_apart(Tokenizer.from_files({"tokenizer.json": made.to_str().encode()}), "here")
    with pytest.raises(UserError, match="keep only those in the text with --characters used"):
        cut(pieces, ["好 的"], coverage=50.0)
    assert cut(pieces, ["好 的"], coverage=99.0, characters="used")[0].kept.tolist() == [0, 1, 3]


def test_text_without_a_known_piece() -> None:
    with pytest.raises(
        UserError, match=r"contains no token of the tokenizer.s vocabulary; give text in the model's language"
    ):
        cut(pieces_of("wordpiece"), ["☃ ☃"], coverage=99.0)
