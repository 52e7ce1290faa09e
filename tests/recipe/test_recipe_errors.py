"""Every mistake in a recipe: one line with place, key path, found against allowed, and the nearest right thing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Override
from compress.errors import ExitCode, UserError
from compress.recipe import load_recipe, parse_override

BASE = """\
name: x
seed: 1
corpus: {source: opinions-corpus}
data: {source: opinions}
stages:
  - kind: pretrain
    encoder: {layers: 2, hidden: 32, heads: 2, intermediate_size: 64}
    training:
      steps: 10
      learning_rate: 1e-3
  - kind: distill
    level: task_specific
    student: {layers: [0, 1]}
    objectives:
      - kind: soft_targets
        temperature: 2
    training: {epochs: 1}
"""

KINDS = (
    "distill, drop_tokens, export, factorize, finetune, make_static, pretrain, prune_layers, prune_vocab, prune_width, "
    "quantize, reduce_dimensions, share, sparsify, tokenizer"
)
RULES = "every-other, every-other-from-last, first, last, uniform or a list of layer numbers"

# (text in BASE, what replaces it, the whole message)
MISTAKES = [
    # unknown names, with the nearest right one
    ("seed: 1", "sed: 1", "x.yaml:2:1: sed: unknown key; did you mean 'seed'?"),
    ("hidden: 32", "hiden_size: 32", "x.yaml:7:26: stages.0.encoder.hiden_size: unknown key; did you mean 'hidden'?"),
    ("steps: 10", "step: 10", "x.yaml:9:7: stages.0.training.step: unknown key; did you mean 'steps'?"),
    (
        "student: {layers: [0, 1]}",
        "encoder: {layers: 2}",
        "x.yaml:13:5: stages.1.encoder: unknown key; stages.1 is distill; stages.0 (pretrain) has this key",
    ),
    (
        "temperature: 2",
        "temprature: 2",
        "x.yaml:16:9: stages.1.objectives.0.temprature: unknown key; did you mean 'temperature'?",
    ),
    (
        "kind: pretrain",
        "kind: pretain",
        "x.yaml:6:11: stages.0.kind: unknown kind: found the text 'pretain'; did you mean 'pretrain'?",
    ),
    (
        "kind: soft_targets",
        "kind: soft_target",
        "x.yaml:15:15: stages.1.objectives.0.kind: unknown kind: "
        "found the text 'soft_target'; did you mean 'soft_targets'?",
    ),
    ("kind: pretrain", "kind: 5", f"x.yaml:6:11: stages.0.kind: unknown kind: found 5; known: {KINDS}"),
    ("kind: pretrain", "knd: pretrain", f"x.yaml:6:5: stages.0.kind: missing key; known: {KINDS}"),
    (
        "data: {source: opinions}",
        "data: {source: opinions, task: clasification}",
        "x.yaml:4:32: data.task: found the text 'clasification', "
        "allowed: classification, embedding, multi-label, pair-classification, question-answering, regression, "
        "reranking, token-classification; did you mean 'classification'?",
    ),
    # missing
    ("stages:", "stags:", "x.yaml:5:1: stags: unknown key; did you mean 'stages'?"),
    ("    level: task_specific\n", "", "x.yaml:11:5: stages.1.level: missing key; add `level:`"),
    (
        "corpus: {source: opinions-corpus}",
        "",
        "x.yaml:6:5: corpus: missing key: stages.0 (pretrain) needs it; add `corpus:`",
    ),
    (
        "steps: 10",
        "steps: 10\n      epochs: 1",
        "x.yaml:8:5: stages.0.training: epochs and steps both set the length of training; remove one, or set an "
        "inherited one to null",
    ),
    # wrong types
    ("seed: 1", "seed: 1.5", "x.yaml:2:7: seed: found 1.5, allowed: a whole number"),
    ("seed: 1", "seed: true", "x.yaml:2:7: seed: found true, allowed: a whole number"),
    ("seed: 1", "seed: '1'", "x.yaml:2:7: seed: found the text '1', allowed: a whole number; write 1"),
    ("seed: 1", "seed: 010", "x.yaml:2:7: seed: found the text '010', allowed: a whole number; write 10"),
    ("seed: 1", "seed: 1_000", "x.yaml:2:7: seed: found the text '1_000', allowed: a whole number; write 1000"),
    ("seed: 1", "seed: 12:30", "x.yaml:2:7: seed: found the text '12:30', allowed: a whole number"),
    ("seed: 1", "seed: null", "x.yaml:2:7: seed: found nothing (null), allowed: a whole number"),
    ("seed: 1", "seed: [1]", "x.yaml:2:7: seed: found a list, allowed: a whole number"),
    ("name: x", "name: true", "x.yaml:1:7: name: found true, allowed: text; quote it: 'true'"),
    ("name: x", "name: 5", "x.yaml:1:7: name: found 5, allowed: text; quote it: '5'"),
    ("name: x", "name: ''", "x.yaml:1:7: name: found an empty text"),
    ("1e-3", "fast", "x.yaml:10:22: stages.0.training.learning_rate: found the text 'fast', allowed: a number"),
    (
        "level: task_specific",
        "level: task_specific\n    control: yes",
        "x.yaml:13:14: stages.1.control: found the text 'yes', allowed: true or false; write true",
    ),
    ("training: {epochs: 1}", "training: 3", "x.yaml:17:15: stages.1.training: found 3, allowed: a mapping"),
    ("data: {source: opinions}", "data: opinions", "x.yaml:4:7: data: found the text 'opinions', allowed: a mapping"),
    ("- kind: soft_targets\n        temperature: 2", "- soft_targets", "x.yaml:15:9: stages.1.objectives.0: "
     "found the text 'soft_targets', allowed: a mapping"),
    # out of range
    ("seed: 1", "seed: -1", "x.yaml:2:7: seed: found -1, allowed: >= 0"),
    ("steps: 10", "steps: 0", "x.yaml:9:14: stages.0.training.steps: found 0, allowed: > 0"),
    ("1e-3", "5", "x.yaml:10:22: stages.0.training.learning_rate: found 5, allowed: < 1"),
    ("epochs: 1", "epochs: -1", "x.yaml:17:24: stages.1.training.epochs: found -1, allowed: > 0"),
    (
        "temperature: 2",
        "temperature: 0",
        "x.yaml:16:22: stages.1.objectives.0.temperature: found 0, allowed: > 0",
    ),
    (
        "intermediate_size: 64",
        "intermediate_size: 64, norm: pots",
        "x.yaml:7:77: stages.0.encoder.norm: found the text 'pots', allowed: post, pre; did you mean 'post'?",
    ),
    (
        "heads: 2",
        "heads: 5",
        "x.yaml:7:45: stages.0.encoder.heads: hidden 32 is not divisible by 5 heads; the nearest that fits is 4",
    ),
    ("source: opinions}", "source: opinions, max_length: 2}", "x.yaml:4:38: data.max_length: found 2, allowed: >= 3"),
    # layer maps
    ("[0, 1]", "[1, 0]", "x.yaml:13:23: stages.1.student.layers: layer 0 is listed after 1; "
     "list layers in ascending order"),
    ("[0, 1]", "[1, 1]", "x.yaml:13:23: stages.1.student.layers: layer 1 is listed twice; remove one"),
    ("[0, 1]", "[0, -1]", "x.yaml:13:23: stages.1.student.layers: found layer -1, "
     "allowed: whole numbers from 0"),
    ("[0, 1]", "[]", "x.yaml:13:23: stages.1.student.layers: found an empty list; a student needs at least one layer"),
    ("[0, 1]", "frst", f"x.yaml:13:23: stages.1.student.layers: found the text 'frst', allowed: {RULES}; "
     "did you mean 'first'?"),
    ("[0, 1]", "2", f"x.yaml:13:23: stages.1.student.layers: found 2, allowed: {RULES}"),
    ("{layers: [0, 1]}", "{layers: [0, 1], count: 3}", "x.yaml:13:38: stages.1.student.count: found 3, "
     "but 2 layers are listed; remove count"),
    # blocks that do not go together
    ("level: task_specific", "level: task_specific\n    masking: {}", "x.yaml:11:5: stages.1: masking requires level: "
     "general, found task_specific"),
    ("level: task_specific", "level: general\n    control: true", "x.yaml:11:5: stages.1: control requires level: "
     "task_specific, found general"),
    # extends
    ("name: x", "extends: [a]", "x.yaml:1:10: extends: must name one recipe: found a list"),
    ("name: x", "extends: smok", "x.yaml:1:10: extends: unknown recipe 'smok'; did you mean 'smoke'?"),
    ("name: x", "extends: x.yaml", "x.yaml:1:10: extends: recipes extend each other in a cycle: x → x"),
    # more than one mistake
    ("seed: 1", "seed: -1\npaper: 3", "x.yaml:2:7: seed: found -1, allowed: >= 0; and 1 more problem"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES, ids=[f"{o[:20]}→{n[:24]}" for o, n, _ in MISTAKES])
def test_mistakes(old: str, new: str, message: str, folder: Path) -> None:
    assert old in BASE
    (folder / "x.yaml").write_text(BASE.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_recipe("./x.yaml")
    assert str(caught.value) == message
    assert caught.value.code == ExitCode.INPUT


def test_the_base_is_valid(folder: Path) -> None:
    (folder / "x.yaml").write_text(BASE)
    assert [stage.kind for stage in load_recipe("./x.yaml").stages] == ["pretrain", "distill"]


FLAGS = [
    ("seed=1.5", "--set seed=1.5: seed: found 1.5, allowed: a whole number"),
    ("sed=1", "--set sed=1: sed: unknown key; did you mean 'seed'?"),
    ("seed", "--set seed: not of the form key=value; e.g. --set stages.0.training.learning_rate=1e-4"),
    ("=1", "--set =1: not of the form key=value; e.g. --set stages.0.training.learning_rate=1e-4"),
    ("seed.x=1", "--set seed.x=1: seed: not a mapping: it is 1"),
    ("a..b=1", "--set a..b=1: an empty key in the path: found 'a..b'"),
    ("stages.5.training.steps=1", "--set stages.5.training.steps=1: stages.5: no such stage: "
     "stages count from 0: 0-pretrain, 1-distill"),
    (
        "stages.-1.training.steps=1",
        "--set stages.-1.training.steps=1: stages.-1: '-1' is no stage; "
        "known: 0-pretrain, 1-distill, distill, pretrain",
    ),
    (
        "stages.distil.training.steps=1",
        "--set stages.distil.training.steps=1: stages.distil: 'distil' is no stage; did you mean 'distill'?",
    ),
    ("stages.*.x.y=1", "--set stages.*.x.y=1: stages.*.x.y: this path does not exist in the recipe"),
    (
        "stages.*.training.precision=b16",
        "--set stages.*.training.precision=b16: stages.0.training.precision: "
        "found the text 'b16', allowed: auto, fp32, bf16; did you mean 'bf16'? (and 1 more problem)",
    ),
    ("stages.0.training=[1", "--set stages.0.training=[1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
    ("data=&a [*a]", "--set data=&a [*a]: anchors are not allowed; write the value again, or use `extends:`"),
    ("data={a: 1, a: 2}", "--set data={a: 1, a: 2}: duplicate key 'a': twice in one mapping; keep one"),
    ("stages.0.encoder.layers=", "--set stages.0.encoder.layers=: stages.0.encoder.layers: "
     "found nothing (null), allowed: a whole number"),
    ("seed=\x1b[31m", "--set seed=\\x1b[31m: character U+001B is not allowed in YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "message"), FLAGS, ids=[f[:30] for f, _ in FLAGS])
def test_mistakes_of_flags_name_the_flag(flag: str, message: str, folder: Path) -> None:
    (folder / "x.yaml").write_text(BASE)
    with pytest.raises(UserError) as caught:
        load_recipe("./x.yaml", [parse_override(flag)])
    assert str(caught.value) == message


def test_another_flag_is_named_too(folder: Path) -> None:
    (folder / "x.yaml").write_text(BASE)
    with pytest.raises(UserError, match=r"^--seed -4: seed: found -4, allowed: >= 0$"):
        load_recipe("./x.yaml", [Override("seed", -4, "--seed -4")])


def test_a_mistake_in_the_extended_file_names_that_file(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE.replace("seed: 1", "seed: x"))
    (folder / "x.yaml").write_text("extends: base.yaml\n")
    with pytest.raises(UserError, match=r"^base.yaml:2:7: seed: found the text 'x', allowed: a whole number$"):
        load_recipe("./x.yaml")


def test_unknown_recipes(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^--recipe: unknown recipe 'distlbert'; did you mean 'distilbert'\?$"):
        load_recipe("distlbert", where="--recipe")
    (folder / "mine.yaml").write_text(BASE)
    with pytest.raises(UserError, match=r"^unknown recipe 'mine'; for your own file write \./mine\.yaml$"):
        load_recipe("mine")
    with pytest.raises(
        UserError, match=r"^no recipe file '\./mime\.yaml': looked for .*; did you mean 'mine\.yaml'\?$"
    ):
        load_recipe("./mime.yaml")
    with pytest.raises(UserError, match=r"^not a recipe name: found ' '$"):
        load_recipe(" ")


def test_a_name_that_drives_terminals_is_shown_escaped() -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("\x1b[2Jx")
    assert "\x1b" not in str(caught.value)


JUNK = st.sampled_from(
    ["", "x", "[", "]", "{", "}", ":", ": ", "- ", "\n", "\t", "'", '"', "&a", "*a", "!!x", "#", "~", "-1", "1e99",
     ".nan", "true", "null", "0x1", "é", "\x07", "---\n", "? ", "| ", "> ", "%", "@"]
)  # fmt: skip


@settings(deadline=None, max_examples=scaled(300))
@given(st.lists(st.tuples(st.integers(0, len(BASE)), st.integers(0, 12), JUNK), min_size=1, max_size=3))
def test_only_user_errors_leave(edits: list[tuple[int, int, str]]) -> None:
    text = BASE
    for start, length, junk in edits:
        text = text[:start] + junk + text[start + length :]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            load_recipe(path)
        except UserError as error:
            assert str(error).isprintable()  # noqa: PT017 - some edits leave a valid recipe


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PATHS = st.sampled_from(
    ["seed", "data", "data.labels", "stages", "stages.0", "stages.0.encoder", "stages.1.student.layers", "stages.*",
     "stages.1.objectives", "stages.1.objectives.0", "stages.1.objectives.0.temperature", "expected", "evaluation"]
)  # fmt: skip


@settings(deadline=None, max_examples=scaled(300))
@given(PATHS, VALUES)
def test_any_value_anywhere_is_taken_or_refused(path: str, value: object) -> None:
    from compress.recipe.document import parse

    base = parse(BASE, "x.yaml")
    assert base is not None
    try:
        load_recipe(base.plain(), [Override(path, value, "--set")])
    except UserError as error:
        assert str(error).startswith("--set: ") or "recipe:" in str(error)  # noqa: PT017
