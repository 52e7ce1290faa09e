"""Learning a vocabulary: the same texts give the same files, and special tokens keep their ids whatever texts hold."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import tokenizers

from compress.data.text.tokenizer_training import KINDS, LINE, _alphabet, repeatable, train
from compress.errors import UserError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the cat sat on the mat", "a dog and a cat", "they sat, and the dog ran"] * 4
SIZE = {"wordpiece": 60, "bpe": 280, "unigram": 60}


def trained(kind: str, texts: Any = TEXTS, size: int | None = None, **options: Any) -> dict[str, bytes]:
    given: dict[str, Any] = {"lowercase": False, "min_frequency": 0} | options
    return train(texts, kind, size or SIZE[kind], **given)


def loaded(files: dict[str, bytes]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])


def pieces(files: dict[str, bytes]) -> list[str]:
    """In the order of their ids, as the file holds them."""
    held = json.loads(files["tokenizer.json"])["model"]["vocab"]
    return [row[0] for row in held] if isinstance(held, list) else sorted(held, key=held.__getitem__)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_that_a_text_spells_out_keep_their_ids(kind: str) -> None:
    files = trained(kind, ["[MASK]"] * 50 + ["a [MASK] b [CLS]", "[MASK][MASK] [PAD]"] * 20, SIZE[kind])
    found = pieces(files)
    assert found[:5] == SPECIALS
    assert len(found) == len(set(found))
    made = loaded(files)
    assert [made.token_to_id(name) for name in SPECIALS] == [0, 1, 2, 3, 4]
    assert made.encode("a [MASK] b").ids[0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_bytes(kind: str) -> None:
    assert trained(kind) == trained(kind, iter(TEXTS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_a_bound(kind: str) -> None:
    assert len(pieces(trained(kind))) <= SIZE[kind]
    with pytest.raises(UserError, match=rf"^a vocabulary of 5 is too small for {kind}; give \d+ or more$"):
        trained(kind, size=5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", "  ", "\n\t"]])
def test_without_text_there_is_nothing_to_learn(kind: str, texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"^there is no text to train a tokenizer on$"):
        trained(kind, texts)


def test_an_unknown_kind() -> None:
    with pytest.raises(UserError, match=r"unknown kind of tokenizer 'wordpeice'; did you mean 'wordpiece'\?"):
        trained("wordpeice", size=60)


def test_more_characters_than_the_vocabulary_holds() -> None:
    letters = "".join(map(chr, range(0x430, 0x450)))
    with pytest.raises(UserError, match=r"too small for the characters of this text: 32 characters, 31 .*; give 168"):
        trained("wordpiece", [letters], 40)
    assert len(pieces(trained("wordpiece", [letters], 168))) >= 68, "with what the error says it works"


@pytest.mark.parametrize("kind", KINDS)
def test_lower_casing_is_part_of_the_tokenizer(kind: str) -> None:
    made = loaded(trained(kind, [*TEXTS, "THE CAT"], lowercase=True))
    assert made.encode("THE CAT").ids == made.encode("the cat").ids
    kept = loaded(trained(kind, [*TEXTS, "THE CAT"]))
    assert kept.encode("THE CAT").ids != kept.encode("the cat").ids


def test_vocab_txt_says_what_tokenizer_json_says() -> None:
    files = trained("wordpiece", lowercase=True)
    assert files["vocab.txt"].decode().splitlines() == pieces(files)
    assert json.loads(files["tokenizer_config.json"])["do_lower_case"] is True
    assert "vocab.txt" not in trained("bpe")


def test_a_very_long_text_is_read_to_its_end() -> None:
    text = "a " * LINE + "zebra " * 50
    assert "zebra" in pieces(trained("wordpiece", [text], 60))


def test_rare_ideographs_leave_the_room_to_letters_and_frequent_ones() -> None:
    counts = Counter({"a": 9, "b": 2, "字": 5, "文": 3, "罕": 1})
    assert _alphabet(Counter(), counts, 100, min_frequency=2) == sorted("ab字文")
    assert _alphabet(Counter(), counts, 5 + 2 + 1, min_frequency=0) == sorted("ab字"), "room for one: the most frequent"
    inside = Counter({"字": 1})
    assert _alphabet(inside, counts, 5 + 2 + 1, min_frequency=0) == sorted("ab文"), "字 would need two tokens"


def test_ties_of_characters_go_to_the_smaller_code_point() -> None:
    counts = Counter({"文": 1, "字": 1})
    assert _alphabet(Counter(), counts, 6, min_frequency=0) == [min("文", "字")]


def test_scores_of_a_unigram_vocabulary_do_not_depend_on_a_hash_table() -> None:
    """Two trainings: other last digits, another order, and characters that were not learned the other way around."""
    learnt = {"▁the": -2.3792648990, "▁t": -6.98327, "q": -5.0}
    one = {**learnt, "h": -6.98327, "s": -6.98317, "e": -6.98307}
    two = {"e": -6.98327, "h": -6.98307, "s": -6.98317, **learnt, "▁the": -2.3792648994}
    assert repeatable(one) == repeatable(two)
    assert dict(repeatable(one)) == {
        "e": -6.98307, "h": -6.98317, "s": -6.98327, "q": -5.0, "▁t": -6.98327, "▁the": -2.37926,
    }  # fmt: skip


def test_learned_scores_stay_and_nothing_is_lost() -> None:
    learnt = {"a": -1.0, "b": -2.0, "ab": -3.0}
    assert repeatable(learnt) == [("a", -1.0), ("ab", -3.0), ("b", -2.0)]
    assert repeatable({}) == []
