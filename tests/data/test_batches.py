"""Batch sources: every row once an epoch, any step from (seed, epoch, index) alone, micro-batches within budget."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Batch
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.batches.epoch_order import micro_batches
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples, collate, examples_of, join, require_labels
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading.corpus import Corpus, open_corpus
from compress.data.tables.table import UNLABELLED
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import Tokens, pack_blocks, sentences, tokenize
from compress.errors import UserError


def examples(lengths, seed=0, labels=True) -> Examples:
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = random.integers(5, 90, offsets[-1]).astype(np.int32)
    special = np.zeros(len(ids), dtype=bool)
    special[offsets[:-1]] = special[offsets[1:] - 1] = True
    label = random.integers(0, 3, len(lengths)) if labels else np.full(len(lengths), UNLABELLED)
    segments = np.zeros(len(ids), np.uint8)
    return Examples(ids, offsets, segments, special, label, np.arange(1, len(lengths) + 1), 0, f"print {seed}")


def same(a: Batch, b: Batch) -> bool:
    for field in dataclasses.fields(Batch):
        one, two = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, torch.Tensor):
            if not torch.equal(one, two):
                return False
        elif one != two:
            return False
    return True


def test_ids_and_labels_are_checked_on_the_host(tokenizer: Tokenizer) -> None:
    """On a GPU each of these would end the process, without a row."""
    texts = ["good film", "bad plot", "again"]
    part = tokenizer.encode_batch(texts, max_length=8)
    labels, numbers = np.array([0, 2, UNLABELLED]), np.array([11, 12, 13])
    good = examples_of(tokenizer, [part], labels, numbers, 8)
    require_labels(good, 3, "reviews")
    with pytest.raises(UserError, match="reviews: row 12 has the label 2: the model has 2 classes, from 0 on"):
        require_labels(good, 2, "reviews")
    part.ids[part.offsets[2] + 1] = 90_000
    with pytest.raises(UserError, match="row 13 has the token id 90,000: the vocabulary has ids up to"):
        examples_of(tokenizer, [part], labels, numbers, 8)
    spans = dataclasses.replace(good, labels=np.array([[1, 2], [-100, -100], [1, 3]]))
    with pytest.raises(UserError, match="row 13 has the answer position 3: the row has 3 tokens"):
        require_labels(spans, 0, "questions")
    tags = np.where(good.special, UNLABELLED, 1)
    tags[good.offsets[1] + 1] = 5
    tagged = dataclasses.replace(good, labels=tags, words=np.zeros(len(tags), np.int32))
    with pytest.raises(UserError, match="row 12 has the label 5: the model has 2 classes"):
        require_labels(tagged, 2, "tags")
    require_labels(dataclasses.replace(good, labels=np.array([0.5, np.nan, 7.0])), 1, "scores")


def check(batch: Batch) -> None:
    """What every packed batch must be."""
    lengths = batch.cu_seqlens.diff()
    assert batch.cu_seqlens[0] == 0
    assert batch.cu_seqlens[-1] == batch.tokens
    assert lengths.min() > 0
    assert lengths.max() == batch.max_length
    assert batch.rows == len(batch.row_ids)
    assert batch.position_ids.tolist() == [i for n in lengths.tolist() for i in range(n)]
    assert batch.special_mask is not None
    for name in ("input_ids", "segment_ids", "position_ids", "special_mask"):
        assert getattr(batch, name).shape == (batch.tokens,)
    for name in ("input_ids", "segment_ids", "position_ids", "cu_seqlens", "row_ids"):
        assert getattr(batch, name).dtype == torch.int64


LENGTHS = st.lists(st.integers(3, 40), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 20), st.integers(40, 200), st.integers(0, 2**40), st.integers(0, 5))
@settings(max_examples=scaled(60), deadline=None)
def test_an_epoch_covers_every_row_once(lengths, rows_per_step, max_tokens, seed, epoch):
    data = examples(lengths)
    source = TaskBatches(data, rows_per_step, max_tokens, seed)
    seen = []
    for index in range(source.steps(epoch)):
        parts = source.step(epoch, index)
        for batch in parts:
            check(batch)
            assert batch.tokens <= max_tokens
            assert (batch.cu_seqlens.diff().diff() >= 0).all()  # like lengths side by side
            for i, row in enumerate(batch.row_ids.tolist()):
                a, b = batch.cu_seqlens[i : i + 2].tolist()
                assert batch.input_ids[a:b].tolist() == data.ids[data.offsets[row] : data.offsets[row + 1]].tolist()
                assert batch.labels is not None
                assert batch.labels[i] == data.labels[row]
        rows = [r for batch in parts for r in batch.row_ids.tolist()]
        assert len(rows) == (rows_per_step if index < source.steps(epoch) - 1 else len(lengths) - len(seen))
        seen += rows
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 20), st.integers(0, 1000))
@settings(max_examples=scaled(30), deadline=None)
def test_a_step_does_not_depend_on_what_was_asked_before(lengths, rows_per_step, seed):
    one, two = (TaskBatches(examples(lengths), rows_per_step, 100, seed) for _ in range(2))
    asked = list(itertools.product(range(2), range(one.steps(0))))
    straight = {key: one.step(*key) for key in asked}
    for key in reversed(asked):
        assert all(same(a, b) for a, b in zip(straight[key], two.step(*key), strict=True))


def test_epochs_and_seeds_have_orders_of_their_own():
    data = examples([5] * 200)
    source, other = TaskBatches(data, 200, 10_000, 0), TaskBatches(data, 200, 10_000, 1)
    orders = [s.step_rows(e, 0).tolist() for s in (source, other) for e in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert source.fingerprint != other.fingerprint
    assert source.fingerprint == TaskBatches(data, 200, 10_000, 0).fingerprint
    assert source.fingerprint != TaskBatches(data, 100, 10_000, 0).fingerprint
    assert source.fingerprint != TaskBatches(examples([5] * 200, seed=1), 200, 10_000, 0).fingerprint
    with pytest.raises(IndexError):
        source.step(0, 1)


def test_labelled_and_unlabelled_rows_mix():
    both = join(examples([5] * 30), examples([6] * 70, seed=1, labels=False))
    source = TaskBatches(both, 100, 10_000, 0)
    labels = torch.cat([b.labels for b in source.step(0, 0) if b.labels is not None])
    assert (labels == UNLABELLED).sum() == 70
    first = source.step_rows(0, 0)[:50]
    assert 5 < (first < 30).sum() < 26  # mixed, not one after the other


@given(LENGTHS, st.integers(40, 400))
@settings(max_examples=scaled(60), deadline=None)
def test_micro_batches(lengths, budget):
    sizes = np.array(lengths)
    parts = micro_batches(np.arange(len(sizes)), sizes, budget)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(sizes)))
    assert all(sizes[p].sum() <= budget for p in parts)
    assert (np.diff(sizes[np.concatenate(parts)]) >= 0).all()
    assert len(parts) <= 2 * -(-sizes.sum() // budget)


def test_a_row_above_the_budget_stands_alone():
    parts = micro_batches(np.arange(4), np.array([5, 100, 5, 5]), 20)
    assert [p.tolist() for p in parts] == [[0, 2, 3], [1]]


@given(LENGTHS, st.integers(40, 200))
@settings(max_examples=scaled(30), deadline=None)
def test_evaluation_sees_every_row_and_puts_it_back(lengths, budget):
    data = examples(lengths)
    out = np.full(len(data), -1)
    batches = evaluation_batches(data, budget)
    for batch in batches:
        check(batch)
        out[batch.row_ids.numpy()] = batch.cu_seqlens.diff().numpy()
    assert out.tolist() == data.lengths.tolist()
    assert len(list(batches)) == len(batches)
    assert (np.diff([b.max_length for b in batches]) >= 0).all()


@pytest.mark.parametrize(("rows", "tokens"), [(0, 10), (10, 0)])
def test_bad_sizes(rows, tokens):
    with pytest.raises(UserError, match="batch_rows and max_tokens must be 1 or more"):
        TaskBatches(examples([5]), rows, tokens, 0)


def test_collate_keeps_segments_and_specials():
    data = examples([4, 3])
    batch = collate(data, np.array([1, 0]))
    assert batch.special_mask is not None
    assert batch.special_mask.tolist() == [True, False, True, True, False, False, True]
    assert batch.row_ids.tolist() == [1, 0]


# --- corpora ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(toy_tokenizer_files) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


def words(count: int, seed: int) -> str:
    pool = ["the", "film", "was", "not", "very", "good", "bad", "liking", "actors", "plot", "never"]
    random = np.random.default_rng(seed)
    return " ".join(pool[i] for i in random.integers(0, len(pool), count)) + "."


@pytest.fixture
def corpus(write) -> Corpus:
    random = np.random.default_rng(0)
    rows = [{"text": " ".join(words(n, i * 9 + j) for j, n in enumerate(random.integers(1, 12, 5)))} for i in range(40)]
    write("c/validation.jsonl", rows[:4])
    return open_corpus(str(write("c/train.jsonl", rows[4:]).parent))


@pytest.fixture
def tokens(corpus, tokenizer) -> Tokens:
    return tokenize(corpus, tokenizer)


def make(tokens, tokenizer, **change) -> CorpusBatches:
    given: dict[str, Any] = {"block_length": 24, "rows_per_step": 8, "max_tokens": 100, "seed": 5} | change
    return CorpusBatches(tokens, tokenizer, **given)


def originals(batch: Batch) -> torch.Tensor:
    """The ids before masking."""
    assert batch.mlm_positions is not None
    assert batch.mlm_labels is not None
    ids = batch.input_ids.clone()
    ids[batch.mlm_positions] = batch.mlm_labels
    return ids


@pytest.mark.parametrize("masking", ["dynamic", "static"])
@pytest.mark.parametrize("pairs", ["none", "sop", "nsp"])
def test_blocks_of_an_epoch(masking, pairs, tokens, tokenizer):
    source = make(tokens, tokenizer, masking=masking, pairs=pairs)
    seen, rows = [], []
    for index in range(source.steps(0)):
        for batch in source.step(0, index):
            check(batch)
            assert batch.max_length <= 24
            ids = originals(batch)
            for i in range(batch.rows):
                a, b = batch.cu_seqlens[i : i + 2].tolist()
                row = ids[a:b].tolist()
                assert row[0] == tokenizer.cls_id
                assert row[-1] == tokenizer.sep_id
                inner = [t for t in row if t not in (tokenizer.cls_id, tokenizer.sep_id)]
                assert row.count(tokenizer.sep_id) == (1 if pairs == "none" else 2)
                segment = batch.segment_ids[a:b].tolist()
                first = row.index(tokenizer.sep_id)
                assert segment == [0] * (first + 1) + [1] * (len(row) - first - 1)
                seen += inner
            rows += batch.row_ids.tolist()
            assert batch.special_mask is not None
            assert batch.mlm_positions is not None
            assert not batch.special_mask[batch.mlm_positions].any()
            assert (batch.pair_labels is None) == (pairs == "none")
    assert sorted(rows) == list(range(len(source.blocks)))
    if pairs != "nsp":  # there B may come from elsewhere
        kept = [tokens.ids[a:b] for a, b in zip(source.blocks.starts, source.blocks.ends)]
        assert sorted(seen) == sorted(np.concatenate(kept).tolist())


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=8),
    st.integers(8, 30),
    st.booleans(),
)
@settings(max_examples=scaled(80), deadline=None)
def test_packing_keeps_every_token(documents, block_length, across):
    lengths = [n for d in documents for n in d]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    bounds = np.concatenate([[0], np.cumsum([len(d) for d in documents])])
    stretch = Tokens(np.arange(offsets[-1], dtype=np.int32), np.ones(offsets[-1], dtype=bool), offsets, bounds, "x")
    blocks = pack_blocks(stretch, block_length, 2, across_documents=across)
    assert blocks.starts[0] == 0
    assert blocks.ends[-1] == offsets[-1]
    assert (blocks.starts[1:] == blocks.ends[:-1]).all()
    size = blocks.ends - blocks.starts
    assert size.min() >= 1
    assert size.max() <= block_length - 2
    fits = {int(o) for o, n in zip(offsets[1:], lengths)}
    long = [(a, b) for a, b, n in zip(offsets[:-1], offsets[1:], lengths) if n > block_length - 2]
    for end in blocks.ends.tolist():  # a block ends with a sentence, unless that one is longer than a block
        assert end in fits or any(a < end < b for a, b in long)
    owner = np.searchsorted(offsets[bounds], blocks.starts, side="right") - 1
    assert blocks.documents.tolist() == owner.tolist()
    if not across:
        assert (np.searchsorted(offsets[bounds], blocks.ends, side="left") - 1 == owner).all()


@pytest.mark.parametrize("choice", ["token", "whole_word", "distilbert"])
@pytest.mark.parametrize("pairs", ["none", "sop", "nsp"])
def test_a_corpus_step_is_a_function_of_seed_epoch_and_index(choice, pairs, tokens, tokenizer):
    one, two = (make(tokens, tokenizer, choice=choice, pairs=pairs) for _ in range(2))
    keys = [(e, i) for e in range(2) for i in range(one.steps(0))]
    made = {key: one.step(*key) for key in keys}
    for key in reversed(keys):
        assert all(same(a, b) for a, b in zip(made[key], two.step(*key), strict=True))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != make(tokens, tokenizer, choice=choice, pairs=pairs, seed=6).fingerprint


def rows_of(source: CorpusBatches, epoch: int) -> dict[int, tuple]:
    found = {}
    for index in range(source.steps(epoch)):
        for batch in source.step(epoch, index):
            for i, row in enumerate(batch.row_ids.tolist()):
                a, b = batch.cu_seqlens[i : i + 2].tolist()
                found[row] = tuple(batch.input_ids[a:b].tolist())
    return found


@pytest.mark.parametrize("pairs", ["none", "sop", "nsp"])
def test_static_masking_repeats_and_dynamic_does_not(pairs, tokens, tokenizer):
    static = make(tokens, tokenizer, masking="static", pairs=pairs)
    assert rows_of(static, 0) == rows_of(static, 3)
    # nor does it depend on which rows share a step
    assert rows_of(make(tokens, tokenizer, masking="static", pairs=pairs, rows_per_step=3), 1) == rows_of(static, 0)
    dynamic = make(tokens, tokenizer, pairs=pairs)
    first, second = rows_of(dynamic, 0), rows_of(dynamic, 1)
    assert sum(first[r] != second[r] for r in first) > 0.4 * len(first)  # short blocks hide one token of a few


@pytest.mark.parametrize("pairs", ["sop", "nsp"])
def test_pair_labels_say_what_was_done(pairs, tokens, tokenizer):
    source = make(tokens, tokenizer, pairs=pairs, rows_per_step=1000, max_tokens=10**6)
    labels = []
    for epoch in range(30):
        (batch,) = source.step(epoch, 0)
        ids = originals(batch)
        assert batch.pair_labels is not None
        labels += batch.pair_labels.tolist()
        for i, row in enumerate(batch.row_ids.tolist()):
            a, b = batch.cu_seqlens[i : i + 2].tolist()
            part, segment = ids[a:b], batch.segment_ids[a:b]
            plain = ~torch.isin(part, torch.tensor([tokenizer.cls_id, tokenizer.sep_id]))
            one, two = part[plain & (segment == 0)].tolist(), part[plain & (segment == 1)].tolist()
            block = tokens.ids[source.blocks.starts[row] : source.blocks.ends[row]].tolist()
            assert one
            assert two
            if batch.pair_labels[i] == 0:
                assert one + two == block
            elif pairs == "sop":
                assert two + one == block
            else:
                assert block[: len(one)] == one
    share = np.mean(labels)
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(labels))


def test_the_random_next_segment_is_of_another_document(tokenizer):
    """Documents made of one token each: the segment's token says where it came from."""
    count = 12
    ids = np.repeat(np.arange(5, 5 + count), 10).astype(np.int32)
    stretch = Tokens(ids, np.ones(len(ids), bool), np.arange(0, len(ids) + 1, 5), np.arange(0, 2 * count + 1, 2), "x")
    source = make(stretch, tokenizer, pairs="nsp", rows_per_step=100, block_length=16)
    others = set()
    for epoch in range(300):
        for batch in source.step(epoch, 0):
            ids_now = originals(batch)
            assert batch.pair_labels is not None
            for i in range(batch.rows):
                a, b = batch.cu_seqlens[i : i + 2].tolist()
                first, second = int(ids_now[a + 1]), int(ids_now[b - 2])
                assert (first != second) == bool(batch.pair_labels[i])
                others.add((first, second))
    assert len(others) == count * count  # every other document is drawn


def test_masking_of_a_whole_corpus(tokens, tokenizer):
    source = make(tokens, tokenizer, rows_per_step=32, max_tokens=10_000)
    masked = total = 0
    for epoch in range(20):
        for index in range(source.steps(epoch)):
            for batch in source.step(epoch, index):
                assert batch.mlm_positions is not None
                assert batch.special_mask is not None
                masked += len(batch.mlm_positions)
                total += int((~batch.special_mask).sum())
    assert masked / total == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masking": "dynamc"}, "unknown masking 'dynamc'; did you mean 'dynamic'"),
        ({"choice": "words"}, "unknown choice of tokens 'words'"),
        ({"pairs": "next"}, "unknown sentence pairs 'next'"),
        ({"shares": (0.8, 0.3)}, "invalid shares of .*, and their sum at most 1"),
        ({"rate": 1.5}, "invalid masking rate 1.5"),
        ({"masking": "static", "choice": "distilbert"}, "needs dynamic masking"),
        ({"pairs": "nsp", "across_documents": True}, "blocks that end with their document"),
        ({"block_length": 2}, "invalid maximum length of 2 tokens"),
        ({"block_length": 3, "pairs": "sop"}, "no room for text"),
    ],
)
def test_bad_corpus_batches(change, message, tokens, tokenizer):
    with pytest.raises(UserError, match=message):
        make(tokens, tokenizer, **change)


def test_pairs_need_documents(tokenizer):
    ids = np.arange(5, 25, dtype=np.int32)
    one = Tokens(ids, np.ones(20, bool), np.arange(0, 21, 5), np.array([0, 4]), "x")
    with pytest.raises(UserError, match="needs at least two documents; use sop or none"):
        make(one, tokenizer, pairs="nsp")
    single = Tokens(ids, np.ones(20, bool), np.arange(21), np.arange(21), "x")
    with pytest.raises(UserError, match="no text of this corpus can be split into two segments"):
        make(single, tokenizer, pairs="sop")


# --- opening text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "no." She left.\nNew line', ['He said "no.', "She left.", "New line"]),
        ("第一句。第二句！end", ["第一句。", "第二句！", "end"]),
        ("3.14 is e.g.not", ["3.14 is e.g.not"]),
        ("  \n ", []),
    ],
)
def test_sentences(text, expected):
    assert [s.rstrip('"') for s in sentences(text)] == [e.rstrip('"') for e in expected]


def test_a_text_file_of_documents(write):
    corpus = open_corpus(str(write("a.txt", "\n".join(f"first {i}.\nsecond {i}.\n" for i in range(30)))))
    every = [t for s in ("train", "validation") for t in corpus.texts(s)]
    assert sorted(every) == sorted(f"first {i}.\nsecond {i}." for i in range(30))
    assert any("of train are held out" in n for n in corpus.notes)
    lines = open_corpus(str(write("b.txt", "\n".join(f"line {i}" for i in range(30)) + "\n\n")))
    assert sum(len(r) for r in lines.splits.values()) == 30


def test_a_folder_of_text_files(write, tmp_path):
    for name in ("train", "valid"):
        write(f"t/{name}.txt", f"{name} one\n\n{name} two\n")
    corpus = open_corpus(str(tmp_path / "t"))
    assert list(corpus.texts("validation")) == ["valid one", "valid two"]


def test_a_column_of_a_table(write):
    path = str(write("a.jsonl", [{"doc": i, "body": f"text {i}."} for i in range(20)]))
    assert sum(len(r) for r in open_corpus(path).splits.values()) == 20
    with pytest.raises(UserError, match="text column 'bodi' not found; did you mean 'body'"):
        open_corpus(path, text_column="bodi")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "the file is empty"),
        ("a.txt", b" \n\n", "the file has no text"),
        ("a.txt", b"caf\xe9", r"a\.txt:1: this is not UTF-8 text"),
        ("a.jsonl", b'{"text": null}\n', r"no row has text"),
    ],
)
def test_bad_text(name, content, message, write):
    with pytest.raises(UserError, match=message):
        open_corpus(str(write(name, content)))


def test_a_corpus_without_tokens(write, tokenizer):
    corpus = open_corpus(str(write("a.jsonl", [{"text": " "}] * 3)))
    with pytest.raises(UserError, match="the corpus has no tokens"):
        tokenize(corpus, tokenizer)


def test_tokens_follow_the_text(tokens, corpus, tokenizer):
    assert tokens.sentences[-1] == len(tokens.ids)
    assert len(tokens.documents) - 1 == len(list(corpus.texts()))
    pieces = {i: t for t, i in tokenizer.vocabulary.items()}
    for start, id_ in zip(tokens.word_starts, tokens.ids):
        assert start != pieces[int(id_)].startswith("##")
    assert tokens.word_starts[tokens.sentences[:-1]].all()


def test_wikitext(data_dir, minilm):
    tokenizer = Tokenizer.load(minilm)
    tokens = tokenize(open_corpus(str(data_dir / "wikitext2")), tokenizer)
    source = make(tokens, tokenizer, block_length=128, rows_per_step=64, max_tokens=8192, pairs="nsp")
    assert source.steps(0) > 50
    for batch in source.step(0, 0):
        check(batch)


def test_the_embedded_corpus(tokenizer):
    corpus = open_corpus("opinions-corpus")
    assert set(corpus.splits) >= {"train", "validation"}
    text = next(corpus.texts())
    assert len(sentences(text)) >= 3
