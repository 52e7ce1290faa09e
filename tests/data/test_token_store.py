"""A corpus in its files with tokens on the disk: the same batches as in memory, whatever happened on the way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Batch, MaskingSpec, NoiseSpec, TrainingPlan
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.reading import file_corpus as filecorpus
from compress.data.reading.corpus import Corpus
from compress.data.reading.file_corpus import FileCorpus, open_corpus, select_split
from compress.data.text import token_store as tokenstore
from compress.data.text.token_store import ShardedArray, load_or_store_tokens
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import Tokens, tokenize
from compress.errors import UserError
from compress.stages.shared.corpora import corpus_batches

WORDS = ("the", "film", "was", "not", "very", "good", "bad", "and", "i", "think", "never", "liked", "it", "plot")


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of one to nine sentences; one in ten is blank."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        if random.random() < 0.1:
            made.append("  ")
            continue
        lengths = random.integers(1, 30, random.integers(1, 10))
        made.append(" ".join(" ".join(random.choice(WORDS, n)) + "." for n in lengths))
    return made


def write(folder: Path, kind: str, train: list[str], validation: list[str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for split, rows in {"train": train, "validation": validation or []}.items():
        if not rows:
            continue
        table = pa.table({"text": rows, "number": list(range(len(rows)))})
        if kind == "jsonl":
            lines = [json.dumps({"text": text, "number": i}) + "\n" for i, text in enumerate(rows)]
            (folder / f"{split}.jsonl").write_text("".join(lines))
        elif kind == "txt":
            (folder / f"{split}.txt").write_text("".join(text + "\n" for text in rows if text.strip()))
        elif kind == "parquet":
            pq.write_table(table, folder / "x", row_group_size=7)
            (folder / "x").rename(folder / f"{split}.parquet")
        else:
            opener = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with pa.OSFile(str(folder / f"{split}.arrow"), "wb") as sink, opener(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=7)
    return folder


@pytest.fixture
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenstore, "SHARD", 600)
    monkeypatch.setattr(tokenstore, "AT_ONCE", 8)
    monkeypatch.setattr("compress.data.text.tokens.AT_ONCE", 8)


def same(ours: Tokens, theirs: Tokens) -> None:
    for name in tokenstore.FILES:
        assert np.array_equal(getattr(ours, name)[:], getattr(theirs, name)[:]), name


def source(tokens: Tokens, tokenizer: Tokenizer, **options: Any) -> CorpusBatches:
    plain: dict[str, Any] = {"block_length": 24, "rows_per_step": 16, "max_tokens": 200, "seed": 5}
    return CorpusBatches(tokens, tokenizer, **(plain | options))


def equal(ours: Batch, theirs: Batch) -> None:
    for field in dataclasses.fields(Batch):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


@pytest.mark.thorough
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet", "arrow", "arrow-stream"])
def test_streamed_batches_are_the_ones_in_memory(kind: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    name = str(write(tmp_path / "corpus", kind, texts(60), texts(20, 1)))
    streamed, held = open_corpus(name, stream=True), open_corpus(name)
    assert isinstance(streamed, FileCorpus)
    assert not isinstance(held, FileCorpus)
    for split in ("train", "validation"):
        same(load_or_store_tokens(streamed, tokenizer, split, folder=tmp_path), tokenize(held, tokenizer, split))
    tokens = load_or_store_tokens(streamed, tokenizer, folder=tmp_path)
    assert len(list(tmp_path.glob("tokens/*/shard-*"))) > 5
    ways: list[dict[str, Any]] = [
        {},
        {"pairs": "nsp"},
        {"pairs": "sop", "choice": "whole_word"},
        {"choice": "distilbert"},
    ]
    for options in ways:
        ours, theirs = source(tokens, tokenizer, **options), source(tokenize(held, tokenizer), tokenizer, **options)
        assert ours.steps(0) == theirs.steps(0) > 10
        for epoch in (0, 1):
            for index in range(ours.steps(epoch)):
                for a, b in zip(ours.step(epoch, index), theirs.step(epoch, index), strict=True):
                    equal(a, b)


@pytest.mark.usefixtures("small_shards")
def test_any_step_can_be_rebuilt_without_those_before(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """What a resumed run relies on: a new process gets step 3 of epoch 1 as the old one would have."""
    name = str(write(tmp_path / "corpus", "jsonl", texts(60)))
    old = source(
        load_or_store_tokens(open_corpus(name, stream=True), tokenizer, folder=tmp_path), tokenizer, pairs="nsp"
    )
    for index in range(old.steps(0)):
        old.step(0, index)
    expected = [old.step(1, index) for index in range(4)][3]
    new = source(
        load_or_store_tokens(open_corpus(name, stream=True), tokenizer, folder=tmp_path), tokenizer, pairs="nsp"
    )
    assert new.fingerprint == old.fingerprint
    for a, b in zip(new.step(1, 3), expected, strict=True):
        equal(a, b)


@pytest.mark.parametrize("world", [2, 3, 20])
def test_the_processes_of_a_run_share_out_each_step(world: int, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Each row with the masks it has in one process; together all rows, none twice; some may have none."""
    name = str(write(tmp_path / "corpus", "jsonl", texts(30)))
    tokens = load_or_store_tokens(open_corpus(name, stream=True), tokenizer, folder=tmp_path)
    alone = source(tokens, tokenizer, pairs="sop")
    ranks = [source(tokens, tokenizer, pairs="sop", rank=rank, world=world) for rank in range(world)]
    assert {rank.fingerprint for rank in ranks} == {alone.fingerprint}

    def rows(batches: Sequence[Batch]) -> dict[int, tuple[list[int], list[int]]]:
        found: dict[int, tuple[list[int], list[int]]] = {}
        for batch in batches:
            bounds = batch.cu_seqlens.tolist()
            assert batch.mlm_positions is not None
            hidden = np.isin(np.arange(batch.tokens), batch.mlm_positions.numpy())
            for row, start, end in zip(batch.row_ids.tolist(), bounds, bounds[1:], strict=False):
                assert row not in found
                found[row] = batch.input_ids[start:end].tolist(), hidden[start:end].tolist()
        return found

    for index in range(alone.steps(0)):
        parts = [rank.step(0, index) for rank in ranks]
        assert rows([batch for part in parts for batch in part]) == rows(alone.step(0, index))
        if index == 0:
            assert sum(bool(part) for part in parts) == min(world, 16)


class KilledError(Exception):
    pass


@pytest.mark.thorough
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("at", [0, 9, 41])
def test_tokenizing_goes_on_where_it_was_interrupted(
    at: int, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus(str(write(tmp_path / "corpus", "jsonl", texts(60), ["the film."])), stream=True)
    whole = load_or_store_tokens(corpus, tokenizer, folder=tmp_path / "a")
    plain = FileCorpus.texts

    def cut(self: Corpus, split: str = "train") -> Iterator[str]:
        for number, text in enumerate(plain(self, split)):  # pyright: ignore[reportArgumentType]
            if number == at:
                raise KilledError
            yield text

    monkeypatch.setattr(FileCorpus, "texts", cut)
    with pytest.raises(KilledError):
        load_or_store_tokens(corpus, tokenizer, folder=tmp_path / "b")
    monkeypatch.setattr(FileCorpus, "texts", plain)
    before = {shard: shard.stat().st_ino for shard in (tmp_path / "b").glob("tokens/*/shard-*")}
    told: list[str] = []
    again = load_or_store_tokens(corpus, tokenizer, folder=tmp_path / "b", say=told.append)
    same(again, whole)
    assert again.fingerprint == whole.fingerprint
    assert all(shard.stat().st_ino == inode for shard, inode in before.items())  # not made again
    assert any("resuming tokenization after" in line for line in told) == bool(before)


def cut_file(shard: Path) -> None:
    with open(shard / "ids.bin", "r+b") as file:
        file.truncate(100)


def change_byte(shard: Path) -> None:
    data = bytearray((shard / "ids.bin").read_bytes())
    data[50] ^= 1
    (shard / "ids.bin").write_bytes(data)


def lose_file(shard: Path) -> None:
    (shard / "sentences.bin").unlink()


@pytest.mark.thorough
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", [cut_file, change_byte, lose_file])
def test_what_is_damaged_is_found_and_made_again(
    damage: Callable[[Path], None], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    corpus = open_corpus(str(write(tmp_path / "corpus", "jsonl", texts(60), ["the film."])), stream=True)
    whole = load_or_store_tokens(corpus, tokenizer, folder=tmp_path)
    expected = whole.ids[:]
    damage(sorted(tmp_path.glob("tokens/*/shard-*"))[2])
    told: list[str] = []
    again = load_or_store_tokens(corpus, tokenizer, folder=tmp_path, say=told.append)
    assert "shard-00002 is damaged" in told[0]
    assert np.array_equal(again.ids[:], expected)
    assert again.fingerprint == whole.fingerprint


@settings(max_examples=scaled(50), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
    start=st.integers(0, 60),
    stop=st.integers(0, 60),
    seed=st.integers(0, 99),
)
def test_shards_read_like_one_array(
    sizes: list[int], start: int, stop: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    random = np.random.default_rng(seed)
    parts = [random.integers(0, 1000, size) for size in sizes]
    paths = []
    for number, part in enumerate(parts):
        paths.append(folder / str(number))
        paths[-1].write_bytes(part.astype(np.int64).tobytes())
    sharded, array = ShardedArray(paths, np.int64), np.concatenate(parts)
    assert len(sharded) == len(array)
    assert np.array_equal(sharded[start:stop], array[start:stop])
    places = random.integers(0, len(array), 20)
    assert np.array_equal(sharded[places], array[places])
    assert sharded[int(places[0])] == array[places[0]]


# --- files ------------------------------------------------------------------------------------------------------


def test_many_files_are_one_corpus_and_names_tell_the_split(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", ["one"])
    (tmp_path / "train.jsonl").rename(tmp_path / "train-00001.jsonl")
    write(tmp_path, "parquet", ["two", "three"])
    (tmp_path / "train.parquet").rename(tmp_path / "train-00002.parquet")
    write(tmp_path, "jsonl", [], ["four"])
    corpus = open_corpus(str(tmp_path), stream=True)
    assert list(corpus.texts("train")) == ["one", "two", "three"]
    assert list(corpus.texts("validation")) == ["four"]


def test_a_large_corpus_is_streamed_without_being_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(write(tmp_path, "jsonl", texts(30)))
    assert not open_corpus(name).stored
    monkeypatch.setattr(filecorpus, "LARGE", 100)
    assert open_corpus(name).stored
    assert not open_corpus(name, stream=False).stored
    assert open_corpus("embedded:opinions-corpus", stream=True, limit=100).stored


def test_documents_are_held_out_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [f"{text} {i}" for i, text in enumerate(texts(400, 3))]
    monkeypatch.setattr(filecorpus, "HELD_OUT", 7)
    parts = {split: list(select_split(iter(found), split)) for split in ("train", "validation")}
    assert len(parts["validation"]) == 7
    assert sorted(parts["train"] + parts["validation"]) == sorted(found)
    corpus = open_corpus(str(write(tmp_path, "jsonl", found)), stream=True)
    assert "held out of train" in corpus.notes[0]
    assert len(list(corpus.texts("validation"))) == 7
    few = open_corpus(str(write(tmp_path / "few", "jsonl", ["one"])), stream=True)
    assert list(few.texts("validation")) == list(few.texts("train")) == ["one"]


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    first = open_corpus(str(write(tmp_path / "a", "jsonl", texts(5))), stream=True)
    assert open_corpus(str(write(tmp_path / "b", "jsonl", texts(5))), stream=True).fingerprint == first.fingerprint
    assert open_corpus(str(tmp_path / "a"), stream=True, limit=3).fingerprint != first.fingerprint
    assert open_corpus(str(write(tmp_path / "c", "jsonl", texts(6))), stream=True).fingerprint != first.fingerprint


def test_what_cannot_be_streamed_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "train.csv").write_text("text\nhello\n")
    with pytest.raises(UserError, match=r"corpus cannot be streamed.*convert it to \.jsonl"):
        open_corpus(str(tmp_path / "train.csv"), stream=True)
    with pytest.raises(UserError, match="corpus cannot be streamed"):
        open_corpus(str(tmp_path), stream=True)
    corpus = open_corpus(str(write(tmp_path / "a", "jsonl", texts(20), ["x"])), stream=True)
    tokens = load_or_store_tokens(corpus, tokenizer, folder=tmp_path)
    with pytest.raises(UserError, match="static masking keeps every masked token in memory"):
        source(tokens, tokenizer, masking="static")
    with pytest.raises(UserError, match="a corpus on disk cannot have blocks across documents"):
        source(tokens, tokenizer, across_documents=True)


def test_a_stage_reads_train_from_the_disk_and_keeps_what_is_held_out(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    corpus = open_corpus(str(write(tmp_path / "a", "jsonl", texts(60), texts(9, 1))), stream=True)
    context: Any = SimpleNamespace(corpus=lambda: corpus, seed=0, say=lambda _: None)
    plan = TrainingPlan(steps=2)
    for split in ("train", "validation"):
        made = corpus_batches(context, tokenizer, split, MaskingSpec(), plan, block_length=24)
        assert made.step(0, 0)[0].tokens
    assert len(list(tmp_path.glob("cache/tokens/*.lock"))) == 1
    with pytest.raises(UserError, match="noise: typo noise is not supported for a streamed corpus"):
        corpus_batches(context, tokenizer, "train", MaskingSpec(), plan, block_length=24, noise=NoiseSpec())


def test_no_more_is_held_out_than_is_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filecorpus, "HELD_OUT", 3)
    monkeypatch.setattr(filecorpus, "MUCH", 10)
    corpus = open_corpus(str(write(tmp_path, "jsonl", ["one"], ["two", " ", "three", "four", "five"])), stream=True)
    assert list(corpus.texts("validation")) == ["two", "three", "four"]
    assert "only the first 3 documents" in corpus.notes[0]


def test_bad_rows_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n')
    with pytest.raises(UserError, match="row 2 is 2"):
        list(filecorpus.documents(path, "text"))
    path.write_text('{"text": "one"}\n{"text": \n')
    with pytest.raises(UserError, match=r"train\.jsonl:2: bad JSON"):
        list(filecorpus.documents(path, "text"))
    blank = write(tmp_path / "blank", "jsonl", [" ", ""], ["x"])
    with pytest.raises(UserError, match="the corpus has no tokens"):
        load_or_store_tokens(open_corpus(str(blank), stream=True), tokenizer, folder=tmp_path)
    with pytest.raises(UserError, match="plain text has no columns"):
        open_corpus(str(write(tmp_path / "plain", "txt", ["one"])), stream=True, text_column="x")


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path))
    assert tokenstore.cache_folder() == tmp_path
    monkeypatch.delenv("COMPRESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tokenstore.cache_folder() == tmp_path / "compress"
