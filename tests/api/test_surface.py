"""What `compress` shows: its names, their signatures, and that nothing is imported before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import click
import pytest

import compress
from compress import registry
from compress.api import command
from compress.errors import UserError

FUNCTIONS = {
    "analyze", "calibrate", "cascade", "convert", "extend", "promote", "tokenizer", "verify",
    "compare", "distill", "factorize", "factorize_linear", "fake_quantize", "finetune", "fit", "keep_word_rows", "load",
    "pretrain", "prune_layers", "prune_vocab", "prune_width", "quantize", "run", "share", "share_layers", "sparsify",
    "drop_tokens", "make_static", "reduce_dimensions",
    "affine_scheme", "symmetric_scheme", "take_heads_and_neurons", "take_layers",
}  # fmt: skip
CLASSES = {"Analysis", "Model", "Result", "RunResult", "Scheme", "Stopped", "UserError", "WrittenModel"}
VERBS = (
    "analyze", "calibrate", "cascade", "convert", "extend", "promote", "tokenizer", "verify",
    "compare", "distill", "factorize", "finetune", "fit", "pretrain", "prune_layers", "prune_vocab", "prune_width",
    "quantize", "run", "share", "sparsify", "drop_tokens", "make_static", "reduce_dimensions",
)  # fmt: skip
OURS = {"teacher", "data", "model", "models", "training", "objectives", "quiet", "recipe", "corpus", "options", "alias"}
"""Keywords that are no flag of the command, or an argument of it."""


def test_the_public_names() -> None:
    assert set(compress.__all__) == FUNCTIONS | CLASSES
    assert [name for name in dir(compress) if not name.startswith("__")] == sorted(compress.__all__)
    assert {"__version__", "__doc__", "__all__"} <= set(dir(compress))
    assert all(callable(getattr(compress, name)) for name in FUNCTIONS)
    assert all(isinstance(getattr(compress, name), type) for name in CLASSES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = compress.nothing  # type: ignore[attr-defined]
    for name in compress.METHODS:
        assert hasattr(compress.Model, name)
        with pytest.raises(AttributeError, match=rf"use the method of a model, compress\.load\(FOLDER\)\.{name}"):
            getattr(compress, name)


def test_type_checkers_see_the_same_names() -> None:
    text = Path(compress.__file__).read_text(encoding="utf-8")
    block = text.partition("if TYPE_CHECKING:")[2].partition("__version__")[0]
    assert all(f" {name}" in block for name in compress.__all__)
    assert Path(compress.__file__).with_name("py.typed").is_file()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_signatures_are_typed_and_described(name: str) -> None:
    function = inspect.unwrap(getattr(compress, name))
    signature = inspect.signature(function)
    assert function.__doc__
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


@pytest.mark.parametrize("method", [n for n, m in vars(compress.Model).items() if callable(m) and n[0] != "_"])
def test_methods_of_a_model_are_described(method: str) -> None:
    function = getattr(compress.Model, method)
    assert function.__doc__
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("verb", VERBS)
def test_keywords_are_flags_of_the_command(verb: str) -> None:
    parameters = inspect.signature(inspect.unwrap(getattr(compress, verb))).parameters
    known = command._keywords(registry.module("compress.cli", verb).command)
    assert set(parameters) - OURS - set(known) == set()


def test_a_package_of_the_same_name_stays_a_function() -> None:
    import compress.compare.run
    import compress.fit.run
    import compress.run

    assert callable(compress.fit)
    assert callable(compress.fit.run.fit)  # type: ignore[attr-defined]
    assert "max_mb" in inspect.signature(inspect.unwrap(compress.fit)).parameters
    with pytest.raises(UserError, match="a value of type int is not a model"):
        compress.fit(3, "opinions")  # type: ignore[arg-type]


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = ["torch", "mlflow", "datasets", "transformers", "numpy", "pandas", "click", "pydantic", "yaml", "rich"]
    code = f"import sys, compress; print([n for n in {heavy} if n in sys.modules], len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, _, count = done.stdout.strip().rpartition(" ")
    assert names == "[]"
    assert int(count) < 200


class _Command:
    """A command with a flag of every kind."""

    @staticmethod
    @click.command()
    @click.option("--keep", type=int)
    @click.option("--no-recover", is_flag=True)
    @click.option("--onnx/--no-onnx", default=None)
    @click.option("--teacher", multiple=True)
    @click.option("--set", "set_", multiple=True)
    @click.option("--groups")
    @click.option("--sweep", multiple=True)
    def command() -> None: ...


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"keep": 3}, ["--keep=3"]),
        ({"keep": None}, []),
        ({"recover": True}, []),
        ({"recover": False}, ["--no-recover"]),
        ({"no_recover": True}, ["--no-recover"]),
        ({"onnx": True}, ["--onnx"]),
        ({"onnx": False}, ["--no-onnx"]),
        ({"teacher": ["a", "b"]}, ["--teacher=a", "--teacher=b"]),
        ({"teacher": Path("a")}, ["--teacher=a"]),
        ({"groups": [1, 2]}, ["--groups=1,2"]),
        ({"groups": [[0, 1], [2]]}, ["--groups=[[0, 1], [2]]"]),
        ({"sweep": {"a.b": [1e-4, 2], "c": ("x",)}}, ["--sweep=a.b=0.0001, 2", '--sweep=c="x"']),
        ({"set": {"a.0.b": {"c": [1]}, "d": None}}, ['--set=a.0.b={"c": [1]}', "--set=d=null"]),
    ],
)
def test_keywords_become_flags(values: dict, words: list[str]) -> None:
    assert list(command._words(_Command.command, values, "compress.x")) == words


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kep": 3}, "compress.x: unknown keyword 'kep'; did you mean 'keep'?"),
        ({"recover": 3}, "compress.x: recover: 3 is not True or False"),
        ({"set": "a=1"}, "compress.x: set: not a dictionary"),
        ({"sweep": {"seed": 3}}, "compress.x: sweep: not a list of values"),
        ({"json": True}, "compress.x: unknown keyword 'json'"),
    ],
)
def test_keywords_that_are_none(values: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        list(command._words(_Command.command, values, "compress.x"))
    assert message in str(caught.value)
