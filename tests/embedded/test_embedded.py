"""The embedded sets: the same everywhere, no text in two splits, labels that follow from the words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from compress.data import embedded
from compress.data.embedded import opinions as opinion_set
from compress.data.embedded import relations, spans
from compress.data.embedded.lexicon import words
from compress.data.embedded.splits import for_evaluation, normalize_text
from compress.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
import freeze

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
TEXTS = {
    "opinions": ("text",),
    "opinions-pairs": ("sentence1",),
    "opinions-similarity": ("sentence1", "sentence2"),
    "opinions-claims": ("text",),
}


@cache
def rows(name: str, seed: int = 0):
    return embedded.generate(name, seed)


def key_texts(name: str, row) -> list[str]:
    if name == "opinions-tags":
        return [" ".join(row["tokens"])]
    if name == "opinions-qa":
        return [row["context"]]
    if name == "opinions-corpus":
        return row["text"].split("\n")[1:-1]
    return [row[column] for column in TEXTS[name]]


@pytest.mark.parametrize(
    "text", ["", '"It was good," said Tom.', "İstanbul's naïve café — 2 x K½", "a\tb\nc  d", "\ud800x"]
)
def test_texts_are_compared_by_their_letters_and_digits(text):
    assert normalize_text(text) == " ".join(re.findall(r"[a-z0-9]+", text.lower()))


@pytest.mark.parametrize("name", embedded.NAMES)
def test_rows_of_a_version_never_change(name):
    """A changed digest means changed rows: then VERSION must change too, and golden.json with it (its `how`)."""
    assert GOLDEN["version"] == embedded.VERSION
    assert freeze.digest(rows(name)) == GOLDEN["digests"][name]


def test_no_dependence_on_the_hash_seed():
    code = (
        "import hashlib, json\n"
        "from compress.data.embedded import opinions as o, generate\n"
        "o.SIZES = {k: v // 10 for k, v in o.SIZES.items()}\n"
        "print(hashlib.sha256(json.dumps(generate('opinions'), sort_keys=True).encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == GOLDEN["digests"]["opinions"]


@pytest.mark.parametrize("name", embedded.NAMES)
def test_seeds_differ_and_repeat(name):
    assert freeze.digest(embedded.generate(name, 1)) == freeze.digest(rows(name, 1))
    assert freeze.digest(rows(name, 1)) != freeze.digest(rows(name))
    marks = {embedded.fingerprint(n, seed) for n in embedded.NAMES for seed in range(3)}
    assert len(marks) == 3 * len(embedded.NAMES)


@pytest.mark.parametrize("name", embedded.NAMES)
def test_columns_are_as_described(name):
    columns = embedded.describe(name).columns
    for split, table in rows(name).items():
        assert table, split
        expected = columns[:1] if split == "unlabelled" else columns
        assert all(tuple(row) == expected for row in table)


@pytest.mark.parametrize("name", embedded.NAMES)
def test_no_text_is_in_two_splits(name):
    home: dict[str, str] = {}
    for split, table in rows(name).items():
        for row in table:
            for text in key_texts(name, row):
                assert home.setdefault(normalize_text(text), split) == split, text


def test_no_set_trains_on_what_another_tests_on():
    for name in embedded.NAMES:
        for split, table in rows(name).items():
            held = name != "opinions-corpus" and split in ("validation", "test")
            assert all(for_evaluation(text) == held for row in table for text in key_texts(name, row)), (name, split)


@pytest.mark.parametrize("name", embedded.NAMES)
def test_some_words_are_never_trained_on(name):
    if name == "opinions-corpus":
        return
    used = {
        split: {w for row in table for text in key_texts(name, row) for w in normalize_text(text).split()}
        for split, table in rows(name).items()
    }
    unseen = (used["test"] | used["validation"]) - used["train"]
    assert len(unseen) >= 5
    assert {"omelette", "butler", "riveting", "surly", "ingrid", "dusk"}.isdisjoint(used["train"])
    if name == "opinions":
        assert len(unseen & used["unlabelled"]) >= 5  # only there can a model meet them


def test_labels_are_balanced_and_train_alone_has_wrong_ones(monkeypatch):
    noisy = rows("opinions")
    monkeypatch.setattr(opinion_set, "FLIPPED", 0.0)
    clean = embedded.generate("opinions")
    for split in ("train", "validation", "test"):
        assert [r["text"] for r in noisy[split]] == [r["text"] for r in clean[split]]
        changed = sum(a["label"] != b["label"] for a, b in zip(noisy[split], clean[split], strict=True))
        share = changed / len(noisy[split])
        assert (0.03 < share < 0.05) if split == "train" else share == 0
        counts = Counter(r["label"] for r in clean[split])
        assert set(counts) == set(embedded.describe("opinions").label_names)
        # A fair coin for every row: a hundred rows may well stand at 37 to 63.
        assert abs(min(counts.values()) / len(clean[split]) - 0.5) < 4 * 0.5 / len(clean[split]) ** 0.5


def test_the_pool_is_large(monkeypatch):
    assert len(rows("opinions")["unlabelled"]) >= 2 * len(rows("opinions")["train"])


def test_pair_labels_are_balanced():
    counts = Counter(r["label"] for r in rows("opinions-pairs")["train"])
    assert set(counts) == set(relations.PAIR_LABELS)
    assert min(counts.values()) > 0.28 * sum(counts.values())


def test_similarity_covers_its_range():
    scores = [r["score"] for r in rows("opinions-similarity")["train"]]
    assert all(0 <= s <= 5 for s in scores)
    assert min(scores) == 0
    assert max(scores) == 5
    assert len({round(s) for s in scores}) == 6


def test_tags_are_iob2():
    multiword = 0
    for row in rows("opinions-tags")["train"]:
        assert len(row["tokens"]) == len(row["labels"])
        before = "O"
        for label in row["labels"]:
            assert label in spans.TAGS
            if label[0] == "I":
                assert before[2:] == label[2:]
                multiword += 1
            before = label
        assert any(label == "B-opinion" for label in row["labels"])
    assert multiword > 50


def test_a_thing_named_in_passing_is_no_aspect():
    seen = 0
    for row in rows("opinions-tags")["train"]:
        found = re.match(r"(After we saw|Before we got to|Aside from) the ([a-z ]+) ,", " ".join(row["tokens"]))
        if found:
            seen += 1
            assert set(row["labels"][: row["tokens"].index(",")]) == {"O"}
    assert seen > 10


def test_answers_are_where_they_are_said_to_be():
    for table in rows("opinions-qa").values():
        for row in table:
            for answer, start in zip(row["answers"], row["answer_starts"], strict=True):
                assert answer
                assert row["context"][start : start + len(answer)] == answer


def test_documents_have_sentences_one_a_line():
    for row in rows("opinions-corpus")["train"]:
        lines = row["text"].split("\n")
        assert 4 <= len(lines) <= 6
        assert all(line == line.strip() and line[-1] in '."' for line in lines)


def test_texts_are_well_formed():
    for row in rows("opinions")["unlabelled"]:
        text = row["text"]
        assert text.isascii()
        assert not re.search(r" [,.;]|,[,.;]|\s\s|[<>+]| -", text), text
        assert text.count('"') % 2 == 0
        assert text[0].isupper() or text[0] == '"'
        assert 3 <= len(text.split()) <= 64


def test_unknown_name():
    with pytest.raises(UserError, match="unknown embedded data set 'opinion-pairs'; did you mean 'opinions-pairs'"):
        embedded.generate("opinion-pairs")
    with pytest.raises(UserError, match="unknown embedded data set 'zzz'; known: opinions"):
        embedded.describe("zzz")
    with pytest.raises(UserError):
        embedded.fingerprint("zzz")


def test_the_lexicon_keeps_its_lists_apart():
    assert words("a, b c | d").entries == (("a",), ("b", "c"), ("d",))
    assert words("a, b c | d").common == 2
