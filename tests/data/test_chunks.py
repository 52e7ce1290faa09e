"""Long texts in chunks: every token is read, neighbours overlap, and a text's chunks answer as one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.cli.main import main
from compress.data.batches.examples import Examples
from compress.data.reading.sources import open_table
from compress.data.tasks import task_of
from compress.data.text.chunks import encode_chunks, pool
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, save_model
from compress.predict.predictor import Predictor

CHUNKED: dict[str, float | int | bool | str | None] = {"long_text": "chunk"}


@pytest.fixture
def tokenizer(toy_tokenizer_files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


def text(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(["the", "film", "was", "good", "bad"], words))


def chunks(tokenizer: Tokenizer, sizes: list[int], max_length: int, stride: int | None = None) -> Examples:
    texts = [text(size, i) for i, size in enumerate(sizes)]
    numbers = np.arange(1, len(sizes) + 1)
    return encode_chunks(tokenizer, [texts], numbers * 10, numbers, max_length=max_length, stride=stride)


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5), max_length=st.integers(8, 30), stride=st.integers(0, 4)
)
def test_chunks_read_every_token_and_share_the_stride(
    tokenizer: Tokenizer, sizes: list[int], max_length: int, stride: int
) -> None:
    made = chunks(tokenizer, sizes, max_length, stride)
    assert made.lengths.max() <= max_length
    for number, size in enumerate(sizes, 1):
        here = np.flatnonzero(made.numbers == number)
        assert (made.labels[here] == number * 10).all()
        whole = tokenizer.encode_plain([text(size, number - 1)], words=False).ids
        read: list[int] = []
        for place, row in enumerate(here):
            ids = made.ids[made.offsets[row] : made.offsets[row + 1]].tolist()
            assert (ids[0], ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
            inner = ids[1:-1]
            if place:
                assert read[-stride:] == inner[:stride] or not stride
                inner = inner[stride:]
                assert inner  # no chunk brings nothing new
            read += inner
        assert read == whole.tolist()


def test_a_text_that_fits_is_encoded_as_ever(tokenizer: Tokenizer) -> None:
    texts = [text(5), text(18), ""]
    cut, chunked = task_of("classification"), task_of("classification", CHUNKED)
    a, b = (task.encode_texts(tokenizer, texts, max_length=20) for task in (cut, chunked))
    for name in ("ids", "offsets", "segments", "special", "labels", "numbers", "fingerprint", "cut"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_logits_are_pooled_by_text(tokenizer: Tokenizer) -> None:
    made = chunks(tokenizer, [30, 3, 30], 20, 4)
    assert made.numbers.tolist() == [1, 1, 2, 3, 3]
    logits = np.array([[1.0, 4.0], [3.0, 0.0], [5.0, 6.0], [-1.0, 0.0], [-3.0, 2.0]], dtype=np.float32)
    assert pool(logits, made, "mean").tolist() == [[2, 2], [5, 6], [-2, 1]]
    assert pool(logits, made, "max").tolist() == [[3, 4], [5, 6], [-1, 2]]
    assert made.notes == ("2 texts of 3 longer than 20 tokens, split into 4 chunks that overlap by 4 tokens",)


@pytest.fixture
def folder(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Path:
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(3)
    meta = FolderMeta(task="classification", label_names=("bad", "good"), max_length=16, task_settings=CHUNKED)
    return save_model(tmp_path / "model", model, tokenizer_files=toy_tokenizer_files, meta=meta)


def test_a_model_answers_and_scores_a_long_text_once(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": text(50, 1), "label": "good"}, {"text": text(4, 2), "label": "bad"}]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 9))
    table = open_table(str(tmp_path), settings={**CHUNKED, "pooling": "max"}, expect_labels=("bad", "good"))
    assert dict(table.settings) == {**CHUNKED, "pooling": "max"}
    predictor = Predictor(folder, settings={"pooling": "max"})
    examples = predictor.encode_rows(table.split("test"), max_length=16)
    logits = predictor.logits(examples)
    assert len(logits) > 18
    scored = predictor.task.score(logits, predictor.label_names, examples, table.split("test"))
    assert scored.rows == 18
    same = predictor.task.compare(logits, logits, predictor.label_names, examples, table.split("test"))
    assert (same.rows, float(same.figures["agreement"](np.ones((1, 18)))[0])) == (18, 1.0)
    plain = Predictor(folder)
    answers = plain.predict([row["text"] for row in rows])
    assert len(answers) == 2
    one = plain.predict([rows[0]["text"]])[0]
    assert one.probabilities == pytest.approx(answers[0].probabilities, abs=1e-6)
    assert Predictor(folder, settings={"long_text": "cut"}).predict([rows[0]["text"]])[0] != one


def test_predict_and_evaluate_chunk_when_they_are_told_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {}
    for way in ("cut", "chunk"):
        assert main(["predict", str(folder), text(50, 1), "--long-text", way, "--json"]) == 0
        answers[way] = json.loads(capsys.readouterr().out)["probabilities"]
    assert answers["cut"] != answers["chunk"]


@pytest.mark.parametrize(
    ("kind", "asked", "message"),
    [
        (
            "classification",
            {"long_text": "chunk", "stride": 14},
            "a stride of 14 tokens is not possible for windows of 16",
        ),
        ("pair-classification", CHUNKED, "chunking is not supported for pairs of texts"),
        ("regression", CHUNKED, "regression has no setting long_text"),
    ],
)
def test_what_cannot_be_chunked_is_refused(
    kind: str, asked: dict[str, object], message: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UserError, match=message):
        task_of(kind, asked).encode_texts(tokenizer, [text(50)], max_length=16)


@pytest.mark.parametrize("asked", [{"stride": 4}, {"pooling": "max"}, {"long_text": "cut", "pooling": "mean"}])
def test_what_would_do_nothing_is_refused(asked: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"{text(4)} {i}", "label": str(i % 2)}) + "\n" for i in range(40)))
    with pytest.raises(UserError, match="only applies to chunks, but long texts are truncated"):
        open_table(str(path), settings=asked)
