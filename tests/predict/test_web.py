"""A folder for browsers: laid out as transformers.js reads it, and it answers as this program does.

What needs node or Chromium takes the npm packages from the folder COMPRESS_NODE (`npm install` of the packages in
package.json) and is skipped without them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import chromium
import onnx
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

import compress
from compress.cli.main import main
from compress.commands.export_web import export_web
from compress.contracts import RunOptions
from compress.data.tasks import kinds
from compress.data.text import words
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.errors import ExitCode
from compress.modelfolder.folder import FolderMeta, save_model
from compress.modelfolder.sentence_pooling import SentenceParts, part_files
from compress.predict.predictor import Predictor
from compress.predict.web import folder as web
from compress.predict.web import model as alone
from compress.predict.web.model import load_model
from evaluation.quality.entities import entities, scheme_of

LONGEST = 12
TEXTS = ["the film was good", "Dull, but good!", "a good , good film " * 9, "", "she never liked the actor's plots"]
PAIRS = ["it was not bad", "a very bad film " * 9, "good", "the plot", "again"]
LABELS = {"token-classification": ("O", "B-PER", "I-PER"), "regression": ("score",), "reranking": ("score",)}
HEADS = {
    "classification": HeadConfig("classification", labels=3),
    "multi-label": HeadConfig("classification", labels=3, problem="multi_label"),
    "pair-classification": HeadConfig("classification", labels=3),
    "regression": HeadConfig("classification", labels=1, problem="regression"),
    "reranking": HeadConfig("classification", labels=1, problem="ranking"),
    "token-classification": HeadConfig("token_classification", labels=3),
    "question-answering": HeadConfig("question_answering"),
}
ROUNDED = {
    "pattern": "encoder.layers.*",
    "weight": {"kind": "per_channel", "bits": 7},  # products of 8 bits overflow on processors without VNNI
    "input": {"kind": "per_token", "bits": 8},
}
HOSTILE = "<script>alert(1)</script>"
FLIPPED = 1e-2
"""What a number may change a probability by that lies in the middle between two codes."""
SECONDS = 120
NPM = ("onnxruntime-web", "@huggingface/tokenizers")


def make(at: Path, kind: str, files: dict[str, bytes], *, quantized: bool = True) -> Path:
    """A model folder with large, random weights."""
    config = EncoderConfig.uniform(
        vocabulary=len(files["vocab.txt"].split()), hidden=32, layers=2, heads=2, feed_forward=48, max_positions=40
    )
    torch.manual_seed(0)
    config = dataclasses.replace(config, initializer_range=0.2)
    if kind == "embedding":
        parts = SentenceParts("mean", (), normalize=True, max_length=LONGEST)
        meta = FolderMeta(family="bert")
        return save_model(
            at / kind, Model(config).eval(), tokenizer_files=files, meta=meta, beside=part_files(parts, 32)
        )
    model = Model(config, {"task": HEADS[kind]}).eval()
    if quantized:
        rules = QuantizationSpec.model_validate({"scheme": None, "rules": [ROUNDED]})
        model = quantize_model(model, plan_quantization(rules, model)).eval()
    names = () if kind == "question-answering" else LABELS.get(kind, ("x", HOSTILE, "z"))
    settings: dict[str, Any] = {"temperature": 2.0} if kind == "classification" else {}
    meta = FolderMeta(family="bert", task=kind, label_names=names, max_length=LONGEST, task_settings=settings)
    return save_model(at / kind, model, tokenizer_files=files, meta=meta)


def export(source: Path) -> Path:
    target = source.with_name("web")
    export_web(str(source), "test", dataclasses.replace(RunOptions(), output=target, quiet=True))
    return target


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes]) -> Path:
    return make(tmp_path_factory.mktemp("quantized"), "classification", toy_tokenizer_files)


@pytest.fixture(scope="module")
def exported(source: Path) -> Path:
    return compress.load(source).export("web", source.with_name("web"), quiet=True).path


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


# --- the folder -------------------------------------------------------------------------------------------------


def test_it_is_laid_out_as_transformers_js_reads_it(exported: Path) -> None:
    files = {file.relative_to(exported).as_posix() for file in exported.rglob("*") if file.is_file()}
    layout = {"config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model_quantized.onnx"}
    page = {"index.html", "page.js", "model.js", "model.py", "task.json", "package.json", "README.md"}
    assert files == layout | page | {"manifest.json"}
    config = read(exported, "config.json")
    assert config["model_type"] == "bert"
    assert config["id2label"] == {"0": "x", "1": HOSTILE, "2": "z"}
    assert config["transformers.js_config"] == {"dtype": "q8"}
    assert read(exported, "tokenizer_config.json")["model_max_length"] == LONGEST
    assert 'pipeline("text-classification", FOLDER)' in (exported / "README.md").read_text()


def test_the_file_keeps_to_what_browsers_compute(exported: Path) -> None:
    made = onnx.load_model(str(exported / "onnx/model_quantized.onnx"))
    assert made.ir_version <= 8
    assert {(entry.domain, entry.version) for entry in made.opset_import} == {("", 17), ("com.microsoft", 1)}
    assert {node.op_type for node in made.graph.node if node.domain} == {"MatMulIntegerToFloat"}
    assert not any(tensor.external_data for tensor in made.graph.initializer)


def test_the_page_asks_nothing_of_other_servers(exported: Path) -> None:
    for name in ("index.html", "page.js", "model.js"):
        text = (exported / name).read_text()
        assert not set(re.findall(r"https?://[^\s<\"']+", text)) - {"http://localhost:8000"}, name
        assert "{{" not in text
        assert "innerHTML" not in text, "no label becomes markup"
    html = (exported / "index.html").read_text()
    assert "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'" in html
    assert not re.search(r"<script(?![^>]*\bsrc=)", html), "the policy forbids scripts in the page"


def test_no_name_becomes_markup() -> None:
    html = web._fill("index.html", {"title": HOSTILE, "about": HOSTILE}).decode()
    assert HOSTILE not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3


ALONE = """
import json, sys
from model import load_model
rows = [load_model(threads=1).answer(text) for text in json.load(sys.stdin)]
large = {"torch", "mlflow", "compress", "pyarrow", "pydantic", "datasets", "transformers"} & set(sys.modules)
print(json.dumps({"rows": rows, "large": sorted(large)}))
"""


def test_a_small_process_answers_as_the_program(source: Path, exported: Path) -> None:
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, cwd=exported)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["large"] == []
    for row, wanted in zip(found["rows"], Predictor(source).predict(TEXTS), strict=True):
        assert row["label"] == wanted.label
        assert row["probabilities"] == pytest.approx(wanted.probabilities, abs=FLIPPED)


def test_a_float_model_has_the_other_name(tmp_path: Path, toy_tokenizer_files: dict[str, bytes]) -> None:
    made = export(make(tmp_path, "embedding", toy_tokenizer_files))
    assert [file.name for file in (made / "onnx").iterdir()] == ["model.onnx"]
    assert read(made, "config.json")["transformers.js_config"] == {"dtype": "fp32"}
    task = read(made, "task.json")
    assert (task["file"], task["answer"], task["max_length"]) == ("onnx/model.onnx", "similarity", LONGEST)


def test_the_words_of_a_text_are_the_same() -> None:
    assert alone._WORD.pattern == words._WORD.pattern


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.sampled_from([["O", "B-PER", "I-PER", "B-X", "I-X"], ["O", "B-P", "I-P", "E-P", "S-P", "B-X", "I-X", "E-X"]]),
    st.lists(st.integers(-1, 7), max_size=8),
)
def test_the_entities_of_tags_are_the_same(names: list[str], numbers: list[int]) -> None:
    scheme = scheme_of(names)
    assert scheme is not None
    text = "a bc d efg hi j kl m"[: sum([2, 3, 2, 4, 3, 2, 3, 1][: len(numbers)])]
    places = words.locate_words(text)
    labels = [None if number < 0 else names[number % len(names)] for number in numbers]
    tagged = [{"start": a, "end": b, "label": label} for (a, b), label in zip(places, labels, strict=True)]
    spans = [(e.type, places[e.start][0], places[e.end - 1][1]) for e in entities([t or "O" for t in labels], scheme)]
    wanted = [{"type": kind, "start": a, "end": b, "text": text[a:b]} for kind, a, b in spans]
    assert alone._find_entities(text, tagged, scheme) == wanted


def test_a_small_process_finds_the_entities(tmp_path: Path, toy_tokenizer_files: dict[str, bytes]) -> None:
    source = make(tmp_path, "token-classification", toy_tokenizer_files, quantized=False)
    folder = export(source)
    assert read(folder, "task.json")["scheme"] == "iob2"
    model = load_model(folder, threads=1)
    short = [text for text in TEXTS if len(model.encode(text)) < LONGEST]
    known = [answer.as_json()["entities"] for answer in Predictor(source).predict(short)]
    assert any(known)
    assert [model.answer(text)["entities"] for text in short] == known


# --- what is not supported --------------------------------------------------------------------------------------


def test_every_kind_of_task_but_one_has_a_page() -> None:
    assert set(kinds()) - set(web.WEB_TASKS) == {"question-answering"}
    assert set(web.WEB_TASKS) <= set(kinds())


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "question-answering is not supported by --to web: supported: classification, multi-label, "),
        (["--opset", "18"], "--opset: only applies to ONNX export"),
        (["--push", "hf:acme/small"], "a web page is not a model folder"),
    ],
)
def test_what_is_rejected(
    flags: list[str],
    line: str,
    tmp_path: Path,
    toy_tokenizer_files: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make(tmp_path, "question-answering", toy_tokenizer_files, quantized=False)
    command = ["export", str(made), "--to", "web", "--output", str(tmp_path / "web"), *flags]
    assert main(command) == ExitCode.INPUT
    assert line in capsys.readouterr().err
    assert not (tmp_path / "web").exists()


def test_a_model_without_a_task(
    tmp_path: Path,
    toy_tokenizer_files: dict[str, bytes],
    tiny_config: EncoderConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = save_model(tmp_path / "bare", Model(tiny_config).eval(), tokenizer_files=toy_tokenizer_files)
    assert main(["export", str(made), "--to", "web", "--output", str(tmp_path / "web")]) == ExitCode.INPUT
    assert "a web page needs a model with a task: it has no task head; fine-tune it" in capsys.readouterr().err


def test_help_is_no_text() -> None:
    for args in ((), ("--help",), ("-h",), ("a", "b", "c")):
        done = subprocess.run([sys.executable, alone.__file__, *args], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("", "usage: python model.py TEXT [SECOND_TEXT]\n"), args


# --- in node and in a browser -----------------------------------------------------------------------------------


def test_a_model_is_called_as_elsewhere(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not `model`, as the folder of each run's result is called."""
    shutil.copytree(source, tmp_path / "small" / "model")
    assert main(["export", str(tmp_path / "small" / "model"), "--to", "web", "--output", str(tmp_path / "web")]) == 0
    assert "writing small for browsers" in capsys.readouterr().err


@pytest.fixture
def packages() -> Path:
    """node_modules with what the page imports."""
    modules = Path(os.environ.get("COMPRESS_NODE", "."), "node_modules").resolve()
    if not all((modules / name).is_dir() for name in NPM):
        pytest.skip(f"no {' and '.join(NPM)} in the folder COMPRESS_NODE")
    return modules


def answer_in_node(cases: list[tuple[Path, list[list[str]]]], packages: Path, at: Path) -> list[list[dict[str, Any]]]:
    """What model.js of each folder answers to its rows. One process, as it takes seconds to load the runtime."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    for folder, _ in cases:
        (folder / "node_modules").symlink_to(packages)
    (at / "cases.json").write_text(json.dumps([{"folder": str(folder), "rows": rows} for folder, rows in cases]))
    command = [program, str(Path(__file__).with_name("web_answers.mjs")), str(at / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def probabilities(kind: str, answer: Any) -> list[float]:
    """The numbers of an answer of this program, as those of the page come."""
    if kind == "token-classification":
        return [word.probability for word in answer.words if word.label is not None]
    return [answer.score] if web.WEB_TASKS[kind].answer == "score" else list(answer.probabilities.values())


def shown(found: dict[str, Any]) -> list[float]:
    if "score" in found:
        return [found["score"]]
    return [one["probability"] for one in found.get("labels") or found["words"] if one["label"] is not None]


@dataclass(frozen=True)
class Case:
    """A model of a kind of task, its folder for browsers, and texts to answer."""

    source: Path
    folder: Path
    pairs: list[str] | None

    @property
    def rows(self) -> list[list[str]]:
        if self.pairs is None:
            return [[text] for text in TEXTS]
        return [list(row) for row in zip(TEXTS, self.pairs, strict=True)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes]) -> dict[str, Case]:
    """By kind of task."""
    made = {}
    for kind, task in web.WEB_TASKS.items():
        source = make(tmp_path_factory.mktemp(kind), kind, toy_tokenizer_files)
        made[kind] = Case(source, export(source), PAIRS if len(task.fields) == 2 else None)
    return made


def similarities(predictor: Predictor) -> list[float]:
    one, other = (np.stack([answer.vector for answer in predictor.predict(texts)]) for texts in (TEXTS, PAIRS))
    return (one * other).sum(1).tolist()


@pytest.mark.thorough
def test_node_answers_as_the_program(cases: dict[str, Case], packages: Path, tmp_path: Path) -> None:
    asked = [(case.folder, case.rows) for case in cases.values()]
    for (kind, case), found in zip(cases.items(), answer_in_node(asked, packages, tmp_path), strict=True):
        predictor = Predictor(case.source)
        if kind == "embedding":
            assert [row["similarity"] for row in found] == pytest.approx(similarities(predictor), abs=1e-5)
            continue
        examples = predictor.task.encode_texts(predictor.tokenizer, TEXTS, case.pairs, max_length=LONGEST)
        for number, (row, answer) in enumerate(zip(found, predictor.predict(TEXTS, case.pairs), strict=True)):
            if kind == "token-classification" and row["cut"]:
                assert len(shown(row)) == LONGEST - 2, "the page reads one window of a long text"
                continue
            if kind != "token-classification":
                assert row["ids"] == examples.ids[examples.offsets[number] : examples.offsets[number + 1]].tolist()
            assert shown(row) == pytest.approx(probabilities(kind, answer), abs=FLIPPED), (kind, number)


@pytest.mark.thorough
def test_python_alone_gives_the_same_vectors(cases: dict[str, Case]) -> None:
    case = cases["embedding"]
    model, predictor = load_model(case.folder, threads=1), Predictor(case.source)
    for text, wanted in zip(TEXTS, predictor.predict(TEXTS), strict=True):
        assert model.answer(text)["embedding"] == pytest.approx(wanted.vector.tolist(), abs=1e-5)
    found = [model.answer(*row)["similarity"] for row in case.rows]
    assert found == pytest.approx(similarities(predictor), abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted(web.WEB_TASKS.keys() - {"embedding"}))
def test_python_alone_answers_as_the_program(kind: str, cases: dict[str, Case]) -> None:
    case = cases[kind]
    model = load_model(case.folder, threads=1)
    for row, wanted in zip(case.rows, Predictor(case.source).predict(TEXTS, case.pairs), strict=True):
        found, known = model.answer(*row), wanted.as_json()
        if kind == "token-classification":
            if len(model.encode(*row)) < LONGEST:
                assert [word["word"] for word in found["words"]] == [word["word"] for word in known["words"]]
                assert shown(found) == pytest.approx(probabilities(kind, wanted), abs=FLIPPED)
        else:
            assert found.keys() == known.keys()
            for key in found.keys() - {"label", "labels"}:
                assert found[key] == pytest.approx(known[key], abs=FLIPPED)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a folder, as `python -m http.server` serves it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TYPE = (
    "(f => {f.value = '%s'; f.dispatchEvent(new Event('input', {bubbles: true}))})(document.querySelector('textarea'))"
)


@pytest.mark.browser
@pytest.mark.thorough
@pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")
def test_the_page_answers_in_a_browser(source: Path, exported: Path, packages: Path, tmp_path: Path) -> None:
    copy = tmp_path / "web"
    shutil.copytree(exported, copy, ignore=shutil.ignore_patterns("node_modules"))
    with serving(copy) as address, chromium.browsing(tmp_path / "profile") as page:
        page.open(address)
        page.wait_for("document.body.innerText.includes('could not be loaded')", 30)
        assert "npm install" in page.text(), "what is missing is on the page"
        (copy / "node_modules").symlink_to(packages)
        page.open(address)
        page.wait_for("document.querySelector('.row') !== null", 30)
        page.evaluate(TYPE % TEXTS[0])
        page.wait_for("document.body.innerText.includes('6 tokens')", 30)
        text = page.text()
        outside = [asked for asked in page.addresses if not asked.startswith((address, "data:"))]
    (wanted,) = Predictor(source).predict(TEXTS[:1])
    for label, share in wanted.probabilities.items():
        shown = re.search(re.escape(label) + r"\s+([\d.]+) %", text)
        assert shown is not None, text
        assert float(shown[1]) / 100 == pytest.approx(share, abs=FLIPPED)
    assert re.search(r"6 tokens · [\d.]+ ms, and [\d.]+ ms for the tokenizer", text)
    assert not outside
