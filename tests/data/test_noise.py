"""Typing mistakes: how many, of which kind, what they leave alone, and that an epoch can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import NOISE_KINDS, NoiseSpec
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.batches.examples import encode_texts
from compress.data.batches.randomness import stream
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading.corpus import open_corpus
from compress.data.tables.table import Rows
from compress.data.tasks.embedding import Task as Embedding
from compress.data.tasks.embedding import relevant_of
from compress.data.text.noise import (
    NEIGHBOURS,
    EachEpoch,
    add_typos,
    add_typos_to_corpus,
    add_typos_to_queries,
    add_typos_to_rows,
)
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import tokenize
from compress.errors import UserError
from compress.recipe import load_recipe

TEXT = "The quick brown Fox jumps over 13 lazy dogs, don't you think so?"


def one(kind: str, text: str = TEXT, rate: float = 0.3, seed: int = 0) -> str:
    return add_typos(text, rate, (kind,), stream("test", seed))


def test_nothing_happens_at_rate_0_and_something_at_rate_1() -> None:
    for kind in NOISE_KINDS:
        assert one(kind, rate=0.0) == TEXT
        assert one(kind, rate=1.0) != TEXT


def test_the_same_generator_gives_the_same_text() -> None:
    assert one("swap", seed=3) == one("swap", seed=3)
    assert len({add_typos(TEXT, 0.3, NOISE_KINDS, stream("test", seed)) for seed in range(20)}) == 20


def test_kinds_do_what_they_say() -> None:
    for seed in range(30):
        swapped, dropped, inserted, hit = (one(kind, seed=seed) for kind in NOISE_KINDS)
        assert sorted(swapped) == sorted(TEXT)
        assert len(dropped) < len(TEXT)
        assert len(inserted) > len(TEXT)
        assert len(hit) == len(TEXT)
        for a, b in zip(TEXT, hit):
            assert a == b or (b.lower() in NEIGHBOURS[a.lower()] and a.isupper() == b.isupper()) or b.isdigit()
        rest = iter(inserted)
        assert all(c in rest for c in TEXT), "the old text is still there, in order"
        rest = iter(TEXT)
        assert all(c in rest for c in dropped)


def test_neighbours_are_mutual_and_near() -> None:
    assert set(NEIGHBOURS["g"]) == set("fhtyvb")
    assert set(NEIGHBOURS["q"]) == set("12wa")
    assert all(key in NEIGHBOURS[near] for key, found in NEIGHBOURS.items() for near in found)


@given(st.text(max_size=60), st.floats(0, 1), st.sets(st.sampled_from(NOISE_KINDS), min_size=1), st.integers(0, 99))
@settings(max_examples=scaled(300), deadline=None)
def test_words_stay_words_and_marks_stay(text: str, rate: float, kinds: set[str], seed: int) -> None:
    made = add_typos(text, rate, sorted(kinds), stream("any", seed))
    assert len(made.split()) == len(text.split())
    assert [c for c in made if not c.isalnum()] == [c for c in text if not c.isalnum()]


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.2])
def test_the_share_of_letters_is_the_rate(rate: float) -> None:
    text = "several letters to mistype again " * 600
    for kind in ("drop", "insert"):
        changed = abs(len(one(kind, text, rate)) - len(text)) / sum(c.isalnum() for c in text)
        assert changed == pytest.approx(rate, rel=0.1)
    hit = one("keyboard", text, rate)
    assert np.mean([a != b for a, b in zip(text, hit) if a.isalnum()]) == pytest.approx(rate, rel=0.1)


def test_chinese_is_mistyped_by_the_kinds_that_can_happen_to_it() -> None:
    text = "我们在北京大学看论文" * 30
    assert one("keyboard", text) == text
    for kind in ("swap", "drop", "insert"):
        assert one(kind, text) != text
    changed = abs(len(add_typos(text, 0.3, ("insert", "keyboard"), stream("zh"))) - len(text))
    assert changed == pytest.approx(0.3 * len(text), rel=0.25), "no rate is lost to a kind that cannot happen"


def test_lists_of_words_keep_their_length_and_no_word_is_empty() -> None:
    words = [["I", "live", "in", "New", "York", "."], ["a"] * 9, []]
    column = pa.chunked_array([pa.array(words, pa.list_(pa.string()))])
    rows = Rows({"words": column}, np.zeros(3, np.int64), np.arange(1, 4))
    made = add_typos_to_rows(rows, NoiseSpec(rate=1.0), stream("tags"))
    found = made.columns["words"].to_pylist()
    assert [len(row) for row in found] == [6, 9, 0]
    assert all(word for row in found for word in row)
    assert found != words
    assert made.labels is rows.labels


def test_rows_of_a_search_share_their_documents_and_equal_queries_their_typos() -> None:
    texts = {"text": ["which film is good", "a long question", "which film is good"],
             "text_pair": ["the first document", "the second document", "the second document"]}  # fmt: skip
    columns = {role: pa.chunked_array([pa.array(some, pa.large_string())]) for role, some in texts.items()}
    rows = Rows(columns, np.full(3, np.nan), np.arange(1, 4))
    assert Embedding().is_search(rows)
    made = add_typos_to_queries(rows, NoiseSpec(rate=0.5), stream("queries"))
    first, second, third = made.texts
    assert first == third != texts["text"][0]
    assert second != texts["text"][1]
    assert made.pairs == texts["text_pair"]
    assert relevant_of(made) == relevant_of(rows)


# --- batches ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer(toy_tokenizer_files)


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        a.input_ids.equal(b.input_ids) and (a.mlm_positions is None or a.mlm_positions.equal(b.mlm_positions))
        for a, b in zip(one, other)
    )


def task_source(tokenizer: Tokenizer, seed: int = 0) -> EachEpoch:
    texts = [f"the film was {'not ' * (n % 2)}good and {'very ' * (n % 3)}bad" for n in range(40)]
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    rows = Rows({"text": column}, np.zeros(40, np.int64), np.arange(40))

    def made(epoch: int) -> TaskBatches:
        mistyped = add_typos_to_rows(rows, NoiseSpec(rate=0.2), stream("task-noise", seed, epoch))
        return TaskBatches(encode_texts(tokenizer, mistyped.texts, max_length=24), 8, 4096, seed)

    return EachEpoch(made, "toy")


def corpus_source(tokenizer: Tokenizer, folder: Path, strategy: str = "dynamic") -> EachEpoch:
    path = folder / "corpus.txt"
    path.write_text("\n".join(f"she said the film was good {'again ' * (n % 4)}." for n in range(60)), encoding="utf-8")
    corpus = open_corpus(str(path))

    def made(epoch: int) -> CorpusBatches:
        mistyped = add_typos_to_corpus(corpus, "train", NoiseSpec(rate=0.2), 0, epoch)
        tokens = tokenize(mistyped, tokenizer)
        return CorpusBatches(tokens, tokenizer, block_length=16, rows_per_step=8, max_tokens=4096, seed=0)

    return EachEpoch(made, "toy")


def test_any_step_can_be_made_again_without_those_before_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for source, again in (
        (task_source(tokenizer), task_source(tokenizer)),
        (corpus_source(tokenizer, tmp_path), corpus_source(tokenizer, tmp_path)),
    ):
        assert source.fingerprint == again.fingerprint
        places = [(epoch, index) for epoch in range(3) for index in range(source.steps(epoch))]
        seen = {place: source.step(*place) for place in places}
        assert all(same(seen[place], again.step(*place)) for place in reversed(places))
        assert not same(seen[0, 0], seen[1, 0]), "other mistakes in another epoch"
    assert task_source(tokenizer, 1).fingerprint != task_source(tokenizer, 0).fingerprint


def test_other_masks_on_the_same_mistyped_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = corpus_source(tokenizer, tmp_path)
    twin = source.with_mask_seed(1 << 32)
    assert twin.fingerprint != source.fingerprint
    for epoch in (0, 1):
        for one_batch, other in zip(source.step(epoch, 0), twin.step(epoch, 0)):
            originals = []
            for batch in (one_batch, other):
                ids = batch.input_ids.clone()
                ids[batch.mlm_positions] = batch.mlm_labels
                originals.append(ids)
            assert torch.equal(*originals)
            assert not one_batch.mlm_positions.equal(other.mlm_positions)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            "{kinds: [swop]}",
            "stages.0.noise.kinds.0: found the text 'swop', allowed: swap, drop, insert, keyboard; did you mean",
        ),
        ("{kinds: []}", "stages.0.noise.kinds"),
        ("{kinds: [drop, drop]}", "drop is listed twice; remove one"),
        ("{rate: 1.5}", "stages.0.noise.rate"),
        ("{rate: -0.1}", "stages.0.noise.rate"),
        ("{rat: 0.1}", "did you mean 'rate'?"),
    ],
)
def test_bad_noise_in_a_recipe(noise: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(
        f"data: {{source: opinions}}\nstages:\n  - {{kind: finetune, noise: {noise}, training: {{steps: 1}}}}\n"
    )
    with pytest.raises(UserError) as caught:
        load_recipe("./x.yaml")
    assert message in str(caught.value), str(caught.value)
    assert "x.yaml:3" in str(caught.value)


def test_noise_needs_masks_of_its_own() -> None:
    encoder = {"layers": 1, "hidden": 8, "heads": 1, "intermediate_size": 8}
    stage = {"kind": "pretrain", "encoder": encoder, "training": {"steps": 1}, "noise": {"rate": 0.1}}
    recipe = {"name": "r", "corpus": {"source": "opinions-corpus"}, "stages": [stage]}
    assert json.loads(load_recipe(recipe).stages[0].model_dump_json())["noise"]["kinds"] == list(NOISE_KINDS)
    with pytest.raises(UserError, match="typo noise changes the tokens every epoch"):
        load_recipe({**recipe, "stages": [{**stage, "masking": {"strategy": "static"}}]})
    with pytest.raises(UserError, match="sentence_pairs: nsp cannot be combined with across_documents"):
        load_recipe({**recipe, "stages": [{**stage, "across_documents": True, "sentence_pairs": "nsp"}]})
