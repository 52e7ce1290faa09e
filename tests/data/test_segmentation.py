"""Words of text without spaces: lists of words, segmenters of the user's own, and whole-word masking by them."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.reading.corpus import open_corpus
from compress.data.text.segmentation import IDEOGRAPH, Segmenter, import_segmenter, word_list
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import tokenize
from compress.errors import UserError

TEXT = "我们在北京大学看BERT论文。"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff我们\n北京\n北京大学\n\n大学\n论文\nBER\n", encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the module `own_cutter` into the working folder, with a function `cut` of this body."""
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> Segmenter:
        (tmp_path / "own_cutter.py").write_text(f"def cut(text):\n    {body}\n", encoding="utf-8")
        monkeypatch.delitem(sys.modules, "own_cutter", raising=False)
        return import_segmenter("own_cutter:cut", "masking.segmenter")

    return write


def cut(segmenter: Segmenter, text: str) -> list[str]:
    at = [*segmenter.starts(text).tolist(), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(at)]


def test_the_longest_listed_word_wins_and_other_ideographs_stand_alone(words: Path) -> None:
    assert cut(word_list(str(words)), TEXT) == ["我们", "在", "北京大学", "看", "BERT", "论文", "。"]


def test_a_listed_word_does_not_cut_a_run_of_letters(words: Path) -> None:
    assert cut(word_list(str(words)), "BERT BER论文") == ["BERT ", "BER", "论文"]


@pytest.mark.parametrize(
    "body",
    ["return [text[:2], text[2:]]", "return iter((text[:2], ' ', text[2:]))", "return text[:2] + '  ' + text[2:]"],
)
def test_a_function_may_return_a_list_an_iterator_or_a_spaced_text(own, body: str) -> None:
    assert own(body).starts("我们在 家").tolist()[:2] == [0, 2]


@given(st.text(alphabet="我们在北京大学AB \t。", max_size=40))
@settings(max_examples=scaled(200), deadline=None)
def test_words_of_a_list_hold_the_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "held.txt"
    if not path.exists():
        path.write_text("我们\n北京大学\n大学\nAB\n", encoding="utf-8")
    segmenter = word_list(str(path))
    assert "".join(segmenter.cut(text)) == text
    starts = segmenter.starts(text)
    assert (np.diff(starts) > 0).all()
    assert all(not text[i].isspace() for i in starts)


# --- bad input --------------------------------------------------------------------------------------------------


def refused(make, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_list_that_is_no_list(tmp_path: Path) -> None:
    refused(lambda: word_list(str(tmp_path / "word.txt")), "word.txt", "no such file")
    refused(lambda: word_list(str(tmp_path)), "found a folder")
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    refused(lambda: word_list(str(empty)), "empty.txt", "the file is empty")
    empty.write_bytes(b"\n \n")
    refused(lambda: word_list(str(empty)), "the word list is empty", "blank lines only")
    empty.write_bytes("北京\n".encode() + "大学\n".encode("gb18030"))
    refused(lambda: word_list(str(empty)), "empty.txt:2", "not UTF-8", "byte 0xb4")
    empty.write_text("北京\n大学 3 n\n", encoding="utf-8")
    refused(lambda: word_list(str(empty)), "empty.txt:2: a word contains white space", "found '大学 3 n'", "one word")


def test_a_segmenter_that_cannot_be_called(own) -> None:
    own("return [text]")
    where = "masking.segmenter"
    refused(
        lambda: import_segmenter("own_cutter", where), where, "not of the form module:function", "found 'own_cutter'"
    )
    refused(
        lambda: import_segmenter("own_cutter:cutt", where), "'own_cutter' has no function 'cutt'", "did you mean 'cut'?"
    )
    refused(lambda: import_segmenter("no_cutter:cut", where), "cannot import 'no_cutter': no such module", "install it")
    Path("broken_cutter.py").write_text("1 / 0\n", encoding="utf-8")
    refused(lambda: import_segmenter("broken_cutter:cut", where), "cannot import 'broken_cutter'", "ZeroDivisionError")


def test_a_segmenter_that_returns_something_else(own) -> None:
    changed = "own_cutter:cut: the segmenter changed the text"
    refused(lambda: own("return [text[1:]]").starts("北京大学"), changed, "given '北京大学', returned '京大学'")
    refused(lambda: own("return [text, '!']").starts("北京"), changed, "returned '北京!'")
    refused(lambda: own("return []").starts("北京"), changed)
    refused(lambda: own("return [1, 2]").starts("北京"), "the segmenter failed on a text", "at '北京'")
    refused(lambda: own("return None").starts("北京"), "the segmenter failed on a text", "TypeError")
    refused(lambda: own("raise KeyError(text)").starts("北京"), "the segmenter failed on a text", "KeyError")


# --- tokenizer and masking --------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path):
    lines = [f"我们在北京大学看第{n}篇论文。大学生们喜欢Transformer模型！" for n in "一二三四五六七八九十"] * 6
    path = tmp_path / "zh.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return open_corpus(str(path))


def test_every_ideograph_is_a_piece_of_its_own(corpus) -> None:
    made = Tokenizer.train(corpus.texts(), vocabulary_size=200)
    ids = made.encode_plain(["大学论文 paper"]).ids
    shown = {i: t for t, i in made.vocabulary.items()}
    assert [shown[i] for i in ids[:4]] == ["大", "学", "论", "文"]
    assert not [t for t in made.vocabulary if IDEOGRAPH.search(t) and len(t) > 1]


def test_ideographs_as_letters_where_asked(corpus) -> None:
    made = Tokenizer.train(corpus.texts(), vocabulary_size=300, tokenize_chinese_chars=False)
    assert [t for t in made.vocabulary if IDEOGRAPH.search(t) and len(t.removeprefix("##")) > 1]
    assert b'"tokenize_chinese_chars": false' in made.files()["tokenizer_config.json"]
    again = Tokenizer({k: v for k, v in made.files().items() if k != "tokenizer.json"})  # from vocab.txt alone
    text = ["我们在北京大学看论文。"]
    assert again.encode_plain(text).ids.tolist() == made.encode_plain(text).ids.tolist()


def test_more_ideographs_than_a_thousand_and_than_there_is_room_for() -> None:
    many = [chr(0x4E00 + i) for i in range(3000)]
    texts = [*many, *many, *many[:50]]
    large = Tokenizer.train(texts, vocabulary_size=4000)
    assert sum(c in large.vocabulary for c in many) == 3000
    few = Tokenizer.train(texts, vocabulary_size=200)
    assert few.vocabulary_size <= 200
    assert all(c in few.vocabulary for c in many[:50]), "the most frequent ones first"


def test_whole_words_are_hidden_whole(corpus, words: Path) -> None:
    tokenizer = Tokenizer.train(corpus.texts(), vocabulary_size=200)
    tokens = tokenize(corpus, tokenizer, "train", word_list(str(words)))
    shown = {i: t for t, i in tokenizer.vocabulary.items()}
    batches = CorpusBatches(
        tokens, tokenizer, block_length=64, rows_per_step=32, max_tokens=4096, seed=0, choice="whole_word"
    )
    university = 0
    for batch in (b for i in range(batches.steps(0)) for b in batches.step(0, i)):
        hidden = set(batch.mlm_positions.tolist())
        ids = batch.input_ids.clone()
        ids[batch.mlm_positions] = batch.mlm_labels
        text = [shown[i] for i in ids.tolist()]
        for place in range(len(text) - 3):
            if text[place : place + 4] == ["北", "京", "大", "学"]:
                assert len(hidden & set(range(place, place + 4))) in (0, 4)
                university += place in hidden
    assert university


def test_words_change_the_fingerprint_and_nothing_else(corpus, words: Path) -> None:
    tokenizer = Tokenizer.train(corpus.texts(), vocabulary_size=200)
    plain, cut = tokenize(corpus, tokenizer), tokenize(corpus, tokenizer, "train", word_list(str(words)))
    assert (plain.ids == cut.ids).all()
    assert cut.word_starts.sum() < plain.word_starts.sum()
    assert plain.fingerprint != cut.fingerprint
    words.write_text("我们\n", encoding="utf-8")
    other = tokenize(corpus, tokenizer, "train", word_list(str(words)))
    assert other.fingerprint != cut.fingerprint


def test_without_spaces_to_part_them_words_of_other_tokenizers_are_the_segmenters(corpus, words: Path) -> None:
    for kind, size in (("unigram", 120), ("bpe", 400)):
        tokenizer = Tokenizer.train(corpus.texts(), kind, vocabulary_size=size)
        tokens = tokenize(corpus, tokenizer, "train", word_list(str(words)))
        assert tokens.word_starts.mean() > 0.2, kind
        assert tokens.word_starts[tokens.sentences[:-1]].all(), kind
