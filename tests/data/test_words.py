"""Words and their pieces: aligned as transformers does, in windows where a text is long, told with characters."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.data.batches.examples import collate, join
from compress.data.batches.ragged import Ragged
from compress.data.reading.sources import open_table
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.tasks import task_of
from compress.data.text import words
from compress.data.text.tokenizer import Tokenizer

TASK = task_of("token-classification")
ODD = ("the", "good", "bads", "film-plot", ",", "O'x", "ñ", "中文", "don't", "3.5%", "...")


@pytest.fixture(scope="module")
def tokenizer(toy_tokenizer_files) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


def rows_of(lists: list[list[str]], tags: list[list[int]] | None = None) -> Rows:
    import pyarrow as pa

    labels = tags or [[0] * len(row) for row in lists]
    made = Ragged(np.array([t for row in labels for t in row], dtype=np.int64), words.bounds_of(map(len, labels)))
    column = pa.chunked_array([pa.array(lists, pa.large_list(pa.large_string()))])
    return Rows({"words": column}, made, np.arange(1, len(lists) + 1))


def one_hot(examples, tags: list[list[int]], classes: int) -> np.ndarray:
    """Logits of a model that gives every answered word its own tag."""
    logits = np.zeros((len(examples.ids), classes))
    owner = {number: i for i, number in enumerate(dict.fromkeys(examples.numbers.tolist()))}
    for at in np.flatnonzero(examples.words >= 0).tolist():
        row = owner[int(examples.numbers[np.searchsorted(examples.offsets, at, side="right") - 1])]
        logits[at, tags[row][examples.words[at]]] = 9.0
    return logits


def test_labels_stand_at_the_first_piece_of_a_word(tokenizer):
    rows = rows_of([["goods", "film", "plot"], ["bad"]], [[1, 2, 0], [2]])
    made = TASK.encode(tokenizer, rows, max_length=16)
    pieces = [next(t for t, i in tokenizer.vocabulary.items() if i == n) for n in made.ids.tolist()]
    told = list(zip(pieces, made.labels.tolist(), strict=True))
    assert [t for t in told if t[1] != UNLABELLED][-3:] == [("film", 2), ("plot", 0), ("bad", 2)]
    assert (made.labels[made.special] == UNLABELLED).all()
    assert made.words is not None
    assert (made.labels != UNLABELLED).sum() == (made.words >= 0).sum() == 4
    batch = collate(made, np.array([1, 0]))
    assert batch.labels is not None
    assert batch.answered is not None
    assert batch.labels.tolist()[:3] == [UNLABELLED, 2, UNLABELLED]
    assert batch.answered.tolist() == (batch.labels != UNLABELLED).tolist()


def test_tags_travel_with_their_rows(tokenizer):
    rows = rows_of([["good", "film"], ["bad"], ["the", "plot", "was"]], [[1, 2], [0], [1, 1, 2]])
    made = TASK.encode(tokenizer, rows, max_length=16)
    part = made.take([2, 0])
    assert part.labels.tolist() == [-100, 1, 1, 2, -100, -100, 1, 2, -100]
    assert part.words is not None
    assert part.words.tolist() == [-1, 0, 1, 2, -1, -1, 0, 1, -1]
    both = join(made, part)
    assert both.labels.tolist() == [*made.labels.tolist(), *part.labels.tolist()]
    assert both.words is not None
    assert len(both.words) == len(both.ids)
    assert TASK.encode(tokenizer, rows.take(np.array([2, 0])), max_length=16).labels.tolist() == part.labels.tolist()


@settings(deadline=None, max_examples=scaled(60))
@given(
    st.lists(st.lists(st.sampled_from(ODD), min_size=1, max_size=9), min_size=1, max_size=4),
    st.integers(4, 14),
)
def test_every_word_is_answered_once_however_short_the_window(tokenizer, lists, length):
    made = TASK.encode(tokenizer, rows_of(lists), max_length=length)
    assert made.words is not None
    assert made.lengths.max() <= length
    for number, row in enumerate(lists, 1):
        windows = np.flatnonzero(made.numbers == number)
        answered = [w for i in windows for w in made.words[made.offsets[i] : made.offsets[i + 1]].tolist() if w >= 0]
        assert sorted(answered) == list(range(len(row)))
    tags = [[(i + len(word)) % 3 for i, word in enumerate(row)] for row in lists]
    scored = TASK.score(one_hot(made, tags, 3), ["A", "B", "C"], made, rows_of(lists, tags))
    assert scored.value("accuracy") == 1.0


def test_alignment_is_that_of_transformers(minilm, data_dir):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)
    rows = open_table(str(data_dir / "btc_ner"), limit=300).split("train")
    made = TASK.encode(Tokenizer.load(minilm), rows, max_length=512)
    lists = rows.columns["words"].to_pylist()
    encoded = theirs(lists, is_split_into_words=True)
    assert made.words is not None
    for i in range(len(lists)):
        span = slice(made.offsets[i], made.offsets[i + 1])
        assert made.ids[span].tolist() == encoded["input_ids"][i]
        numbers = encoded.word_ids(i)
        first = [n if n is not None and n != before else -1 for before, n in zip([None, *numbers], numbers)]
        assert made.words[span].tolist() == first


def test_words_that_are_nothing_to_the_tokenizer_are_told_and_count_as_wrong(tokenizer):
    tags = [[1, 0, 2], [1, 1]]
    rows = rows_of([["good", "\u200b", "film"], ["\u0301", ""]], tags)
    made = TASK.encode(tokenizer, rows, max_length=8)
    assert made.notes == (
        "no tokens for 3 words in 2 rows (rows 1, 2): not used for training, and counted as O, or as wrong, in "
        "evaluation",
    )
    scored = TASK.score(one_hot(made, tags, 3), ["O", "B-x", "I-x"], made, rows)
    assert scored.value("accuracy") == pytest.approx(2 / 5)
    assert scored.value("entity_f1") == pytest.approx(2 * 1 / (1 + 3))


def test_long_texts_are_read_in_windows_and_told(tokenizer):
    rows = rows_of([["the", "film", "was", "good"] * 5, ["bad"]])
    made = TASK.encode(tokenizer, rows, max_length=12)
    assert made.numbers.tolist() == [1, 1, 1, 2]
    assert made.notes == ("1 of 2 texts are longer than 12 tokens and are split into overlapping windows",)
    assert made.cut == 0


def test_raw_text_is_cut_into_words():
    text = "Dr. Ann-Marie's 3.5% off @paulwalk #now 中文字 “yes”"
    found = [text[a:b] for a, b in words.locate_words(text)]
    assert found == [
        "Dr", ".", "Ann-Marie's", "3.5", "%", "off", "@paulwalk", "#now", "中", "文", "字", "“", "yes", "”",
    ]  # fmt: skip
    assert words.locate_words(" \n") == []


def test_answers_have_characters_and_entities(tokenizer):
    text, names = "the good  film, bad plot", ["O", "B-x", "I-x"]
    made = TASK.encode_texts(tokenizer, [text, ""], max_length=16)
    logits = one_hot(made, [[0, 1, 2, 0, 1, 0], []], 3)
    first, empty = TASK.decode(logits, names, made, [text, ""])
    assert first.line(text) == "the/O good/B-x film/I-x ,/O bad/B-x plot/O"
    told = first.as_json()
    assert told["words"][2] | {"probability": 0} == {
        "word": "film",
        "start": 10,
        "end": 14,
        "label": "I-x",
        "probability": 0,
    }
    assert told["entities"] == [
        {"type": "x", "start": 4, "end": 14, "text": "good  film"},
        {"type": "x", "start": 16, "end": 19, "text": "bad"},
    ]
    assert (empty.line(""), empty.as_json()) == ("", {"words": [], "entities": []})
    assert "entities" not in TASK.decode(logits, ["X", "Y", "Z"], made, [text, ""])[0].as_json()


def test_tags_without_chunks_are_scored_by_accuracy():
    assert TASK.choose_metrics(["NOUN", "VERB"])[0] == "accuracy"
    assert TASK.choose_metrics(["O", "S-x", "B-x", "I-x", "E-x"])[0] == "entity_f1"
