"""Flags of the commands that change a model: tables → options and edits of the recipe, without running a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import pytest

from compress import registry
from compress.cli import main as frame
from compress.cli._flags import edits, naming_flags, resolve
from compress.cli._renamed import RENAMED
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.recipe import LoadedRecipe, load_recipe, parse_override
from compress.stages.distill.flags import TABLE as DISTILL
from compress.stages.factorize.flags import TABLE as FACTORIZE
from compress.stages.finetune.flags import TABLE as FINETUNE
from compress.stages.pretrain.flags import TABLE as PRETRAIN
from compress.stages.prune_layers.flags import TABLE as PRUNE_LAYERS
from compress.stages.prune_layers.flags import check_comparison, repeat_stages
from compress.stages.prune_vocab.flags import TABLE as PRUNE_VOCAB
from compress.stages.prune_width.flags import TABLE as PRUNE_WIDTH
from compress.stages.quantize.flags import TABLE as QUANTIZE
from compress.stages.quantize.flags import default_recipe
from compress.stages.share.flags import TABLE as SHARE
from compress.stages.shared.flags import Group, Table
from compress.stages.sparsify.flags import TABLE as SPARSIFY

TABLES = (SHARE, FACTORIZE, SPARSIFY, PRUNE_LAYERS, PRUNE_WIDTH, PRUNE_VOCAB, QUANTIZE, DISTILL, FINETUNE)


def changes(table: Table, recipe: str | None = None, **given: Any) -> dict[str, Any]:
    """Path → value."""
    made = edits(table, LoadedRecipe.read(recipe or table.recipe), {**table.none_given(), **given})
    return {one.path: one.value for one in made}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_every_path_is_a_key_of_the_stage(table: Table) -> None:
    keys = registry.stage_spec(table.kind).model_fields
    for flag in table.flags:
        assert not flag.path or flag.path.split(".")[0] in keys, flag.name
        assert flag.group in get_args(Group)
        assert not flag.family or flag.family in table.families
    assert {key for family in table.families.values() for key in family.keys} <= set(keys)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_no_flags_change_nothing(table: Table) -> None:
    assert changes(table) == {}


EDITS: list[tuple[Table, dict[str, Any], dict[str, Any]]] = [
    (SHARE, {"groups": "3"}, {"pattern": {"kind": "contiguous", "groups": 3}}),
    (SHARE, {"groups": "[[0,1],[2]]"}, {"pattern": {"kind": "listed", "groups": [[0, 1], [2]]}}),
    (SHARE, {"pattern": "cka-free", "groups": "2"}, {"pattern": {"kind": "cka", "contiguous": False, "groups": 2}}),
    (SHARE, {"init": "activation"}, {"init": {"kind": "activation"}}),
    (SHARE, {"share_norms_and_biases": True}, {"share_norms_and_biases": True}),
    (SHARE, {"embedding_max_mb": 2.0}, {"embedding": {"max_mb": 2.0}}),
    (SHARE, {"residual_rank": 0}, {"residual_rank": 0}),
    (FACTORIZE, {"keep": 0.5}, {"ratio": 0.5, "rank": None, "max_mb": None}),
    (FACTORIZE, {"max_mb": 60.0}, {"ratio": None, "rank": None, "max_mb": 60.0}),
    (SPARSIFY, {"sparsity": "2:4"}, {"sparsity": "2:4"}),
    (PRUNE_LAYERS, {"protect": "0,5"}, {"protect": [0, 5]}),
    (PRUNE_LAYERS, {"criterion": "greedy-loss"}, {"criterion": {"kind": "greedy_loss"}}),
    (PRUNE_VOCAB, {"size": 9}, {"coverage": None, "min_count": None, "size": 9}),
    (PRUNE_WIDTH, {"non_uniform": True}, {"uneven": True}),
    (QUANTIZE, {"rows": 8, "no_sensitivity": True}, {"rows": 8, "sensitivity": False}),
    (QUANTIZE, {"bits": "8"}, {"scheme": "per-token"}),
    (QUANTIZE, {"bits": "2"}, {"scheme": "int2"}),
    (FINETUNE, {"new_head": True}, {"new_head": True}),
]


@pytest.mark.parametrize(("table", "given", "expected"), EDITS, ids=lambda value: getattr(value, "kind", None))
def test_flags_are_edits_of_the_recipe(table: Table, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changes(table, **given) == {f"stages.0.{key}": value for key, value in expected.items()}


TRAINED: list[tuple[Table, str | None, dict[str, Any], dict[str, Any]]] = [
    (FINETUNE, None, {"epochs": 3.0}, {"0.training.steps": None, "0.training.epochs": 3.0}),
    (PRUNE_LAYERS, None, {"steps": 9}, {"1.training.epochs": None, "1.training.steps": 9}),
    (SPARSIFY, None, {"learning_rate": 1e-3, "batch_size": 8},
     {"1.training.learning_rate": 1e-3, "1.training.batch_rows": 8}),
    (DISTILL, "smoke", {"temperature": 4.0}, {"0.objectives.0.temperature": 4.0, "1.objectives.0.temperature": 4.0}),
    (DISTILL, "smoke", {"augment": "mix"}, {"1.augmentation.method": "mix"}),
    (PRUNE_LAYERS, None, {"augment": "none", "augment_copies": 2},
     {"1.augmentation.method": "none", "1.augmentation.copies": 2}),
    (QUANTIZE, "qat", {"augment": "neighbours", "augment_model": "m"},
     {"1.augmentation.method": "neighbours", "1.augmentation.model": "m"}),
    (QUANTIZE, "qat", {"steps": 9}, {"1.training.epochs": None, "1.training.steps": 9}),
    (FINETUNE, "teacher", {"batch_size": 8}, {"2.training.batch_rows": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("table", "recipe", "given", "expected"), TRAINED)
def test_training_flags_change_the_stages_that_train_and_run(
    table: Table, recipe: str | None, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert changes(table, recipe, **given) == {f"stages.{key}": value for key, value in expected.items()}


@pytest.mark.parametrize(
    ("table", "recipe", "method"), [(DISTILL, "distilbert-task", None), (PRUNE_LAYERS, None, "mix")]
)
def test_words_of_a_model_need_a_method_that_reads_it(table: Table, recipe: str | None, method: str | None) -> None:
    with pytest.raises(UserError, match="does not use a model; add --augment masked-lm or --augment neighbours"):
        changes(table, recipe, augment=method, augment_model="m")


def test_a_number_of_copies_needs_a_way_to_make_them() -> None:
    with pytest.raises(UserError, match=r"--augment-copies 2: recipe qat makes no copies; add --augment mix"):
        changes(QUANTIZE, "qat", augment_copies=2)


def test_the_maximum_length_is_also_that_of_the_corpus() -> None:
    options = RunOptions(overrides=(Override("data.max_length", 32, "--max-length 32"),))
    made = resolve(DISTILL, "smoke", None, {**DISTILL.none_given(), "demo": True}, options).recipe
    assert (made.data.max_length, made.corpus.max_length) == (32, 32)  # type: ignore[union-attr]
    given = {**PRETRAIN.none_given(), "max_length": 32}
    made = resolve(PRETRAIN, "teacher", None, given, RunOptions()).recipe
    assert (made.data.max_length, made.corpus.max_length) == (64, 32)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train"], "no such command 'train'; did you mean 'finetune'?"),
        (["prune"], "did you mean 'prune-layers', 'prune-width' or 'prune-vocab'?"),
        (["distill", "--batch_size", "3"], "no such option '--batch_size'; did you mean '--batch-size'?"),
        (["finetune", "--num_train_epochs", "3"], "did you mean '--epochs'?"),
        (["finetune", "--temperature", "3"], "finetune trains without a teacher"),
        (["prune-vocab", "m", "--steps", "3"], "prune-vocab trains no model; remove --steps"),
        (["finetune", "m", "--model", "n"], "MODEL and --model together"),
        (["prune-layers", "m", "--model", "n"], "MODEL and --model together"),
        (["evaluate"], "missing argument 'MODEL'"),
        (["prune-layers", "--lr", "0", "--demo"], "--learning-rate 0: stages.1.training.learning_rate: found 0"),
        (
            ["distill", "--recipe", "replay-minilm", "--augment", "mix", "--demo"],
            "--augment mix: recipe replay-minilm distils nothing on the task",
        ),
        (["finetune", "--augment", "mix"], "finetune trains without a teacher"),
        (["finetune", "bert-base-uncased", "--data", "opinions"], "write hf:bert-base-uncased"),
    ],
)
def test_errors_name_the_flag_that_was_meant(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(words) == 2
    assert line in capsys.readouterr().err


EVERY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"no_control": True}, {"0.control": False, "1.control": False}),
    ({"teacher_cache": "c"}, {"0.cache.path": "c", "1.cache.path": "c"}),
    ({"layers": "uniform:3"}, {"*.student.layers": "uniform", "*.student.count": 3}),
    ({"layers": "0,2"}, {"*.student.layers": [0, 2], "*.student.count": None}),
    ({"layers": "last"}, {"*.student.layers": "last", "*.student.count": None}),
    (
        {"student": "m", "layers": "0"},
        {"*.student.model": "m", "*.student.layers": [0], "*.student.count": None},
    ),
    (
        {"hidden_size": "64", "num_heads": "2,4", "intermediate_size": "99", "init": "svd"},
        {"hidden": 64, "heads": [2, 4], "intermediate_size": 99, "init": "svd"},
    ),
]


@pytest.mark.parametrize(("given", "expected"), EVERY, ids=[" ".join(given) for given, _ in EVERY])
def test_flags_of_distill_are_for_all_its_stages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    paths = {key if "." in key else f"*.student.{key}": value for key, value in expected.items()}
    assert changes(DISTILL, "smoke", **given) == {f"stages.{path}": value for path, value in paths.items()}


def test_stages_of_other_kinds_keep_what_they_are() -> None:
    given = {**DISTILL.none_given(), "demo": True, "no_control": True, "teacher_cache": "c", "num_heads": "2"}
    first, *others = resolve(DISTILL, "tiny-cpu", None, given, RunOptions()).recipe.stages
    assert (first.control, first.cache.path, first.student.heads) == (False, "c", 2)
    assert others == [*load_recipe("tiny-cpu").stages[1:]]
    taught = resolve(FINETUNE, "teacher", None, {"demo": True, "new_head": True}, RunOptions()).recipe
    assert [stage.kind for stage in taught.stages if getattr(stage, "new_head", False)] == ["finetune"]


def test_set_may_bring_what_the_recipe_lacks() -> None:
    bare = {"name": "bare", "stages": [load_recipe("finetune").stages[0].model_dump(mode="json")]}
    given = {**FINETUNE.none_given(), "demo": True, "new_head": True}
    made = resolve(FINETUNE, bare, None, given, exact("data.source=opinions")).recipe  # type: ignore[arg-type]
    assert made.stages[0].new_head


def test_the_share_that_stays_is_the_rest_of_the_share_that_goes() -> None:
    made = changes(PRUNE_WIDTH, keep=0.7)
    assert made.pop("stages.0.ratio") == 0.3
    assert set(made.values()) == {None}
    assert "stages.0.hidden" in made


def test_widths_go_along_with_counts() -> None:
    made = changes(PRUNE_WIDTH, num_heads="6,4", hidden_size=192)
    assert (made["stages.0.keep_heads"], made["stages.0.hidden"], made["stages.0.ratio"]) == ([6, 4], 192, None)


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ({}, "quantize"),
        ({"bits": "2"}, "quantize"),
        ({"mode": "qat"}, "qat"),
        ({"mode": "qat", "bits": "4"}, "qat"),
        ({"mode": "qat", "bits": "3"}, "few-bits"),
        ({"mode": "qat", "scheme": "int2-rows"}, "few-bits"),
    ],
)
def test_few_bits_are_trained_by_a_recipe_of_their_own(given: dict[str, Any], recipe: str) -> None:
    assert default_recipe({**QUANTIZE.none_given(), **given}) == recipe
    assert QUANTIZE.recipe_for({**QUANTIZE.none_given(), **given}) == recipe, "also what --set is checked against"


WRONG: list[tuple[Table, dict[str, Any], str]] = [
    (FINETUNE, {"epochs": 2.0, "steps": 3}, "--epochs and --steps together"),
    (SHARE, {"steps": 3, "no_recover": True}, "--steps: nothing is trained with --no-recover"),
    (QUANTIZE, {"steps": 3}, "--steps: recipe quantize trains nothing; use --mode qat, or remove --steps"),
    (PRUNE_WIDTH, {"keep": 1.5}, "--keep: 1.5 is not possible; give a share between 0 and 1"),
    (PRUNE_WIDTH, {"keep": 0.5, "num_heads": "6"}, "--keep and --num-heads together"),
    (PRUNE_WIDTH, {"target_latency": 5.0, "target_params": 0.5}, "--target-params and --target-latency together"),
    (PRUNE_WIDTH, {"prune_rounds": 2, "no_recover": True}, "--prune-rounds: the model recovers between rounds"),
    (PRUNE_WIDTH, {"hidden_size": 0}, "--hidden-size: 0 is not possible; give a number from 1"),
    (PRUNE_LAYERS, {"keep": "3", "drop": 2}, "--keep and --drop together"),
    (PRUNE_LAYERS, {"drop": 0}, "--drop: 0 is not possible; give a number above 0"),
    (SHARE, {"pattern": "all", "groups": "2"}, "pattern all has no number of groups"),
    (SHARE, {"pattern": "cka", "groups": "[[0,1]]"}, "a list of groups is a pattern already"),
    (SHARE, {"shrink_residuals": True, "no_recover": True}, "residuals shrink during recovery training"),
    (PRUNE_VOCAB, {"pretrained": True}, "--pretrained: a pretrained model has no labelled data; add --corpus TEXT"),
    (QUANTIZE, {"mode": "qat"}, "--mode qat: recipe quantize has no training after quantization"),
    (DISTILL, {"layers": "uniform:x"}, "--layers uniform:x: not a rule with a number of layers"),
    (DISTILL, {"layers": "0,x"}, "--layers 0,x: not a list of whole numbers; separate them with commas"),
    (DISTILL, {"num_heads": "2,"}, "--num-heads 2,: not a list of whole numbers"),
    (QUANTIZE, {"bits": "2", "scheme": "lsq"}, "--scheme lsq: --bits selects the scheme itself; remove --bits, or"),
    (QUANTIZE, {"scheme": "per-tokn"}, "--scheme: unknown scheme 'per-tokn'; did you mean 'per-token'?"),
]


@pytest.mark.parametrize(("table", "given", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_flags_that_do_not_fit(table: Table, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        changes(table, **given)
    assert message in caught.value.line()


@pytest.mark.parametrize(
    ("given", "where", "named"),
    [
        ({"layers": "uniform:9"}, "student.count", "--layers uniform:9: student.count"),
        ({"hidden_size": "7"}, "student.hidden", "--hidden-size 7: student.hidden"),
        ({"hidden_size": "half"}, "student.hidden", "--hidden-size half: student.hidden"),
        ({"layers": "uniform"}, "student.count", "student.count"),  # the flag leaves the number open
        ({"layers": "uniform:9"}, "student.hidden", "student.hidden"),
        ({"layers": "uniform:9"}, None, None),
    ],
)
def test_an_error_of_a_run_names_the_flag_that_set_the_key(
    given: dict[str, Any], where: str | None, named: str | None
) -> None:
    loaded = resolve(DISTILL, DISTILL.recipe, None, {**DISTILL.none_given(), **given}, RunOptions())
    with pytest.raises(UserError) as caught, naming_flags(loaded):
        raise UserError("cannot be", where=where)
    assert caught.value.where == named
    assert str(caught.value) == caught.value.line()


def exact(*texts: str) -> RunOptions:
    return RunOptions(overrides=tuple(parse_override(text) for text in texts))


SIBLINGS = [
    (SHARE, {"pattern": "cka", "groups": "3"}, "stages.0.pattern.contiguous=false"),
    (PRUNE_WIDTH, {"importance": "l0"}, "stages.0.importance.steps=3"),
    (PRUNE_LAYERS, {"criterion": "learned-gates"}, "stages.0.criterion.steps=3"),
]


@pytest.mark.parametrize(("table", "given", "text"), SIBLINGS, ids=["share", "prune_width", "prune_layers"])
def test_set_may_name_a_key_that_a_flag_brings(table: Table, given: dict[str, Any], text: str) -> None:
    options = resolve(table, table.recipe, "m", {**table.none_given(), "demo": True, **given}, exact(text))
    assert options.overrides[0] == Override("teacher", "m", "MODEL m")
    assert options.overrides[-1] == parse_override(text)
    key, part = text.split("=")[0].split(".")[2:]
    row = getattr(load_recipe(table.recipe, overrides=options.overrides).stages[0], key)
    assert getattr(row, part) == parse_override(text).value


def test_residuals_may_come_from_set() -> None:
    given = {**SHARE.none_given(), "demo": True, "shrink_residuals": True}
    resolve(SHARE, "share", None, given, exact("stages.0.residual_rank=4"))
    with pytest.raises(UserError, match="there are no residuals to shrink; add --residual-rank R"):
        resolve(SHARE, "share", None, given, exact("stages.0.residual_rank=0"))


def test_rounds_repeat_what_follows_the_cut() -> None:
    given = {**PRUNE_WIDTH.none_given(), "demo": True, "prune_rounds": 2}
    options = resolve(PRUNE_WIDTH, "prune-width", None, given, RunOptions())
    stages = load_recipe("prune-width", overrides=options.overrides).stages
    assert [stage.kind for stage in stages[::2]] == ["prune_width"] * 2
    assert [stage.schedule for stage in stages[::2]] == [1 - 0.5**3, 1]


def test_layers_per_round() -> None:
    rows = repeat_stages(load_recipe("prune-layers", [Override("stages.0.keep", 2, "--keep 2")]), 0, 2, 6)
    cuts = [row for row in rows if row["kind"] == "prune_layers"]
    assert [(row["keep"], row["max_layers_per_stage"]) for row in cuts] == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers_per_round": 1}, "--layers-per-round: does not apply when criteria are compared"),
        ({"random_subsets": 2, "no_recover": True}, "--random-subsets: only applies with recovery training"),
    ],
)
def test_a_comparison_of_criteria(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_comparison({**PRUNE_LAYERS.none_given(), "criterion": "all", **given})


# --- renamed flags ----------------------------------------------------------------------------------------------

OLD = [(command, old) for command, flags in RENAMED.items() for old in flags]


def find(name: str) -> click.Command:
    command = frame.cli.get_command(click.Context(frame.cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize(("name", "old"), OLD, ids=[" ".join(one) for one in OLD])
def test_a_renamed_flag_is_hidden_and_its_new_name_is_not(name: str, old: str) -> None:
    options = {flag: p for p in find(name).params if isinstance(p, click.Option) for flag in p.opts}
    assert options[old].hidden
    assert not options[RENAMED[name][old].to].hidden


@pytest.mark.parametrize(
    ("words", "warning", "line"),
    [
        (["prune-width", ".", "--ratio", "0.7", "--keep-heads", "2", "--data", "opinions"],
         ["--ratio is deprecated; use --keep 0.3, the share that stays",
          "--keep-heads is deprecated; use --num-heads 2"],
         "--keep and --num-heads together"),
        (["factorize", ".", "--no-heal", "--ratio=2"],
         ["--ratio is deprecated; use --keep 2.0", "--no-heal is deprecated; use --no-recover"], "--keep: 2 is not"),
        (["sparsify", ".", "--pattern", "4:8"], ["--pattern is deprecated; use --sparsity 4:8"], "'4:8' is not sup"),
        (["fit", ".", "--train", "heal"], ["--train heal is deprecated; use recover"], "at least one bound"),
        (["ui", "--view", "contest", "--port", "0"], ["--view contest is deprecated; use criteria"], "--port"),
        (["factorize", "m", "--mb", "3", "--max-mb", "4"], [], "--mb and --max-mb together: --mb is the old name"),
    ],
)  # fmt: skip
def test_an_old_flag_works_and_warns(
    words: list[str], warning: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(words) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert sorted(warnings) == [f"warning: {one}" for one in sorted(warning)]
    assert line in error
    assert error.startswith("error: ")


def test_a_recipe_that_lacks_its_training_says_so_before_the_flags_of_training(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: distilbert-task\nstages:\n  - kind: distill\n    objectives: [{kind: hard_labels}]\n")
    with pytest.raises(UserError, match=r"stages\.0\.level: missing key") as caught:
        changes(DISTILL, str(mine), steps=10)
    assert "trains nothing" not in caught.value.line()
