"""What a word could be instead: neighbours and predictions against brute force, and what is kept on the disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from foreign_tokenizers import of_family

from compress.contracts import Batch, Needs
from compress.data.text.rewording import Passage, passage
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.stages.distill import candidates
from compress.stages.distill.candidates import NONE, Neighbours, Predictions, Words, load_or_predict
from compress.storage import atomic

TEXTS = ("the film was not very good", "screenplays? a bad actor, and 9 plots", "never again", "日 was good")


@pytest.fixture
def words(toy_tokenizer_files: dict[str, bytes]) -> Words:
    return Words(Tokenizer(toy_tokenizer_files))


def predictor(model: Model, words: Words, count: int = 4, length: int = 32) -> Predictions:
    return Predictions(prepare(model), words, Neighbours(model, words, count), count, length, "cpu")


def test_candidates_are_whole_words_of_letters(words: Words, toy_vocabulary: list[str]) -> None:
    expected = {t for t in toy_vocabulary if t.isalpha()}
    assert set(words.surfaces.values()) == expected
    assert "film" in expected
    assert not {"ing", "ly"} & expected, "what continues a word is none"
    assert words.tell([words.tokenizer.vocabulary["good"], NONE]) == ["good"]


def foreign(family: str) -> Words:
    """A tokenizer in which words are one piece, with the space before it a part of the piece."""
    files = of_family(family, [*TEXTS, "film good the film was good"] * 9)
    if family != "roberta":
        told = json.loads(files["tokenizer.json"])
        told["model"]["vocab"] += [["▁" + word, -1.0] for word in ("film", "good", "the", "was", "bad", "plot")]
        files["tokenizer.json"] = json.dumps(told).encode()
    return Words(Tokenizer(files))


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_a_space_before_a_word_is_part_of_its_piece_elsewhere(family: str) -> None:
    words = foreign(family)
    assert len(words.ids) > 5
    for word, pieces in zip(words.surfaces.values(), words.tokenize(list(words.surfaces.values())), strict=True):
        assert word.isalpha()
        assert len(pieces) == 1
        assert words.surfaces[int(pieces[0])] == word


def test_neighbours_are_the_nearest_by_cosine(words: Words, tiny_model: Model) -> None:
    found = Neighbours(tiny_model, words, 5).of(["good", "screens", "good", "Good", "日"])
    table = tiny_model.encoder.embeddings.word.weight.detach()
    vocabulary = words.tokenizer.vocabulary
    pieces = {"good": ["good"], "screens": ["s", "##c", "##r", "##e", "##e", "##n", "##s"]}
    for place, word in ((0, "good"), (1, "screens")):
        mean = table[[vocabulary[p] for p in pieces[word]]].mean(0)
        near = F.cosine_similarity(mean[None], table[words.ids], dim=1)
        ranked = words.ids[near.argsort(descending=True).numpy()].tolist()
        assert found[place].tolist() == [i for i in ranked if words.surfaces[i] != word][:5]
    assert found[2].tolist() == found[0].tolist() == found[3].tolist(), "capitals make no other word"
    assert not len(found[4]), "nothing is near to what the tokenizer does not know"


def test_predictions_are_what_the_model_expects_where_one_word_is_hidden(words: Words, tiny_model: Model) -> None:
    found = [passage(text) for text in TEXTS]
    asked = predictor(tiny_model, words)
    got = asked.of(found)
    assert got.shape == (sum(len(p.places) for p in found), 4)
    tokenizer, number = words.tokenizer, 0
    for p in found:
        made = tokenizer.encode_batch([p.text], max_length=32, spans=True)
        assert made.spans is not None
        for (start, end), word in zip(p.places, p.words(), strict=True):
            pieces = [i for i, (a, b) in enumerate(made.spans.tolist()) if a < b and start < b <= end]
            if word == "日":
                assert (got[number] == NONE).all()
            elif len(pieces) == 1:
                assert got[number].tolist() == brute_force(tiny_model, words, made.ids, pieces[0])[:4]
            else:
                assert got[number].tolist() == asked.neighbours.of([word])[0].tolist()
            number += 1


def brute_force(model: Model, words: Words, ids: np.ndarray, place: int) -> list[int]:
    hidden = torch.from_numpy(ids.astype(np.int64))
    own = int(hidden[place])
    hidden[place] = words.tokenizer.mask_id
    count = len(hidden)
    batch = Batch(
        hidden, torch.zeros(count, dtype=torch.int64), torch.arange(count), torch.tensor([0, count]), count,
        torch.zeros(1, dtype=torch.int64), mlm_positions=torch.tensor([place]),
    )  # fmt: skip
    with torch.no_grad():
        output = model(batch, Needs(mlm="masked")).vocabulary
    assert output is not None
    ranked = output.logits()[0].argsort(descending=True).tolist()
    return [i for i in ranked if i in words.surfaces and i != own]


def test_what_is_cut_off_is_not_replaced(words: Words, tiny_model: Model) -> None:
    got = predictor(tiny_model, words, length=4).of([passage("film was not good")])
    assert (got[:2] != NONE).all()
    assert (got[2:] == NONE).all()


def test_there_may_be_fewer_words_than_candidates(words: Words, tiny_model: Model) -> None:
    got = predictor(tiny_model, words, count=500).of([passage("good film")])
    assert got.shape == (2, 500)
    others = set(words.ids.tolist()) - {words.tokenizer.vocabulary["good"]}
    assert sorted(got[0][got[0] != NONE].tolist()) == sorted(others)


# --- on the disk ------------------------------------------------------------------------------------------------


class Counted:
    """Predictions that say how often they were asked for; the candidate of a word is its length."""

    count = 2

    def __init__(self) -> None:
        self.asked: list[int] = []

    def of(self, found: list[Passage]) -> np.ndarray:
        self.asked.append(len(found))
        return np.array([[len(w)] * 2 for p in found for w in p.words()], dtype=np.int32).reshape(-1, 2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SHARD", 2)


FOUND = [passage(text) for text in ("a bb", "ccc", "", "dddd e f", "gg")]
WANT = [1, 2, 3, 4, 1, 1, 2]


@pytest.mark.usefixtures("small")
def test_what_was_predicted_is_read_the_next_time(tmp_path: Path) -> None:
    first, told = Counted(), []
    got = load_or_predict(FOUND, first, ["m"], folder=tmp_path, update=told.append)  # type: ignore[arg-type]
    assert got[:, 0].tolist() == WANT
    assert (first.asked, told) == ([2, 2, 1], [2, 4, 5])
    again = Counted()
    assert load_or_predict(FOUND, again, ["m"], folder=tmp_path)[:, 0].tolist() == WANT  # type: ignore[arg-type]
    assert not again.asked
    for mark, found in ((["n"], FOUND), (["m"], FOUND[1:])):
        other = Counted()
        load_or_predict(found, other, mark, folder=tmp_path)  # type: ignore[arg-type]
        assert other.asked, "another model, or other texts"


@pytest.mark.usefixtures("small")
def test_it_goes_on_where_it_stopped_and_makes_the_damaged_again(tmp_path: Path) -> None:
    steps = iter([None, None])

    def stop() -> None:
        next(steps)

    first = Counted()
    with pytest.raises(StopIteration):
        load_or_predict(FOUND, first, ["m"], folder=tmp_path, stop=stop)  # type: ignore[arg-type]
    assert first.asked == [2, 2]
    second = Counted()
    assert load_or_predict(FOUND, second, ["m"], folder=tmp_path)[:, 0].tolist() == WANT  # type: ignore[arg-type]
    assert second.asked == [1]
    (shard,) = tmp_path.glob("augmentation/*/shard-00001")
    (shard / "candidates.bin").write_bytes(b"\0" * 4)
    third, said = Counted(), []
    assert load_or_predict(FOUND, third, ["m"], folder=tmp_path, say=said.append)[:, 0].tolist() == WANT  # type: ignore[arg-type]
    assert third.asked == [2]
    assert "is damaged" in said[0]
    assert not atomic.verify_folder(shard)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "albert"])
def test_words_of_one_piece_are_found_in_any_tokenizers_text(family: str, tiny_model: Model) -> None:
    """The first word of a text, without a space before it, too."""
    words = foreign(family)
    config = dataclasses.replace(tiny_model.config, vocabulary=words.tokenizer.vocabulary_size)
    model = Model(config, {"mlm": tiny_model.head_configs["mlm"]}).initialize(1).eval()
    asked = predictor(model, words)
    single, several, *_ = asked._placed([passage("film was good"), passage("the film")])
    assert len(single) + len(several) == 5
    assert len(single) >= 4
    assert [number for *_, number in single] == sorted(number for *_, number in single)


def test_the_order_of_texts_and_their_company_change_nothing(words: Words, tiny_model: Model) -> None:
    asked = predictor(tiny_model, words)
    found = [passage(text) for text in TEXTS]
    together = asked.of(found)
    alone = np.concatenate([asked.of([p]) for p in found])
    assert np.array_equal(together, alone)
    assert dataclasses.astuple(found[0]) == dataclasses.astuple(passage(TEXTS[0]))
