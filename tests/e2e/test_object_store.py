"""Training data of a server that speaks the S3 protocol: the models are those of the local files, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_toy import DISTILL, PRETRAINED, Cli, opinions, sha, write_rows
from s3_server import ENVIRONMENT, S3, require_moto

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ONE = ("--threads", "1")
TUNE = ("finetune", "--model", PRETRAINED, "--steps", "4", *ONE)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    require_moto()
    made = S3("texts")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        made.start()
        yield made
        made.stop()


def test_a_model_is_that_of_the_local_folder_and_goes_on_only_with_its_data(
    taught: Path, compress: Cli, s3: S3
) -> None:
    address = s3.upload(taught / "data", "rows")
    for data, run in (("data", "here"), (address, "there")):
        done = compress(*TUNE, "--data", data, "--output", f"runs/{run}")
        assert done.code == 0, done.err
    here, there = (taught / f"runs/{run}/model" for run in ("here", "there"))
    assert sha(there / "model.safetensors") == sha(here / "model.safetensors")
    card = (there / "README.md").read_text()
    assert "s3&#58;//texts/rows" in card  # a bare address would become a link
    assert "127.0.0.1" not in card
    assert str(taught.parent) not in card
    s3.upload(taught / "data/test.jsonl", "rows/train.jsonl")
    changed = compress(*TUNE, "--data", address, "--output", "runs/there", "--resume")
    assert changed.code == 3
    assert "data" in changed.err
    s3.upload(taught / "data/train.jsonl", "rows/train.jsonl")
    again = compress(*TUNE, "--data", address, "--output", "runs/there", "--resume")
    assert again.code == 0, again.err


def test_a_teacher_cache_of_text_in_a_store(taught: Path, compress: Cli, s3: S3) -> None:
    write_rows(taught / "more.jsonl", [{"text": row["text"] + "!"} for row in opinions()["train"][:40]])
    address = s3.upload(taught / "more.jsonl", "more.jsonl")
    for text, cache in (("more.jsonl", "here"), (address, "there")):
        done = compress(*DISTILL, *ONE, "--unlabelled", text, "--teacher-cache", cache, "--output", f"runs/{cache}")
        assert done.code == 0, done.err
    here, there = (
        {p.relative_to(taught / cache): sha(p) for p in (taught / cache).rglob("*") if p.is_file()}
        for cache in ("here", "there")
    )
    assert here
    assert there == here


def test_each_worker_reads_the_store_itself(taught: Path, compress: Cli, s3: S3) -> None:
    address = s3.upload(taught / "data", "seeds")
    for data, run, workers in (("data", "alone", ()), (address, "both", ("--workers", "2"))):
        done = compress(*TUNE, "--data", data, "--seeds", "2", *workers, "--output", f"runs/{run}")
        assert done.code == 0, done.err
    here, there = (
        {p.relative_to(taught / "runs" / run): sha(p) for p in (taught / "runs" / run).rglob("model/model.safetensors")}
        for run in ("alone", "both")
    )
    assert len(here) == 2
    assert there == here


def test_what_is_wrong_with_an_address_is_one_line(own_model: Path, compress: Cli, s3: S3) -> None:
    s3.client.put_object(Bucket="texts", Key="other/weights.bin", Body=b"x")
    s3.client.put_object(Bucket="texts", Key="rows/train.jsonl", Body=b'{"text": "a", "label": 1}\n{\n')
    nowhere = s3.name("rows").replace(str(s3.port), "9")
    for address, said in (
        (s3.name("rows", "textz"), "no such bucket 'textz'"),
        (s3.name("rowz"), "no such file or folder in the store; did you mean s3://texts/rows?"),
        (s3.name("other"), "the folder has no files of data: 1 other files"),
        (s3.name("other/weights.bin"), "cannot read '.bin' files as data"),
        (s3.name("rows"), "s3://texts/rows/train.jsonl:2: "),
        (nowhere, "the store cannot be reached: "),
        ("s3://me:secret/of/mine@texts/rows", "the address contains keys"),
    ):
        done = compress("finetune", "--model", own_model, "--data", address, "--dry-run")
        assert done.code == 2, address
        assert said in done.err
        assert "secret/of" not in done.err
        assert len(done.err.strip().splitlines()) == 1
