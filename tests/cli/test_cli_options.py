"""Shared flags become one `RunOptions`; those that are recipe values become overrides that blame their flag."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from compress.cli import main as frame
from compress.cli._groups import GROUPS
from compress.cli._types import LabelNames, ThreadCount
from compress.cli.options import DATA_ANSWERS, run_options, shared
from compress.contracts import Override, RunOptions
from compress.errors import ExitCode, UserError
from compress.recipe import DataSpec, load_recipe

EVERYTHING = tuple(GROUPS)
DOUBLED = ("display", "overrides", "print_recipe", "runtime", "device", "compute", "trainings")
"""Groups whose flags are in another group, or in all."""


def told(*args: str, groups: tuple[str, ...] = EVERYTHING) -> RunOptions:
    seen: list[RunOptions] = []

    @click.command()
    @shared(*(g for g in groups if g not in DOUBLED))
    @click.option("--own")
    def command(options: RunOptions, own: str | None) -> None:
        seen.append(options)

    result = CliRunner().invoke(command, list(args), obj=frame.State(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_nothing_given() -> None:
    options = told("--device", "cpu")
    assert options == RunOptions()


def test_plain_flags() -> None:
    options = told(
        "--recipe", "smoke", "--device", "cpu", "--output", "o", "--resume", "--dry-run", "--json", "-q",
        "--tracking-uri", "sqlite:///x.db", "--experiment", "e", "--debug",
    )  # fmt: skip
    assert options == RunOptions(
        recipe="smoke", output=Path("o"), resume=True, dry_run=True, json=True, quiet=True,
        tracking_uri="sqlite:///x.db", experiment="e", debug=True,
    )  # fmt: skip


def test_recipe_values_become_overrides_and_set_has_the_last_word() -> None:
    options = told("--device", "cpu", "--set", "seed=3", "--seed", "2", "--teacher", "teacher", "--precision", "bf16")
    assert options.precision == "bf16"
    assert [(o.path, o.value, o.origin) for o in options.overrides] == [
        ("seed", 2, "--seed 2"),
        ("teacher", "teacher", "--teacher teacher"),
        ("stages.*.training.precision", "bf16", "--precision bf16"),
        ("seed", 3, "--set seed=3"),
    ]
    recipe = load_recipe("smoke", options.overrides)
    assert (recipe.seed, recipe.teacher) == (3, "teacher")
    assert {stage.training.precision for stage in recipe.stages} == {"bf16"}


def test_other_data_drops_what_the_recipe_said_about_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("text,y\na,1\n")
    options = told("--device", "cpu", "--data", "mine.csv", "--label-column", "y", "--limit", "5")
    data = load_recipe("distilbert", options.overrides).data
    assert data == DataSpec(source="mine.csv", label_column="y", limit=5, max_length=64)
    assert load_recipe("distilbert").data.unlabelled_split == "unlabelled"  # type: ignore[union-attr]


def test_label_names_are_listed_in_order() -> None:
    options = told("--device", "cpu", "--labels", "2, 3,5", "--max-length", "32")
    assert [(o.path, o.value, o.origin) for o in options.overrides] == [
        ("data.labels", ["2", "3", "5"], "--labels 2,3,5"),
        ("data.max_length", 32, "--max-length 32"),
    ]
    with pytest.raises(click.BadParameter, match=r"'a,,b' has an empty name; give names such as negative,positive"):
        LabelNames().convert("a,,b", None, None)


def test_what_describes_a_source_is_listed_whole() -> None:
    kept = {
        "source",
        "limit",
        "labelled_rows",
        "allow_overlap",
        "max_length",
        "bad_rows",
        "bad_tags",
        "stride",
        "no_answer_threshold",
        "long_text",
        "pooling",
        "metric",
    }
    assert set(DataSpec.model_fields) == kept | set(DATA_ANSWERS)


def test_a_wrong_value_blames_its_flag() -> None:
    options = told("--device", "cpu", "--max-length", "1")
    with pytest.raises(UserError, match=r"^--max-length 1: data\.max_length: found 1, allowed: >= 3$"):
        load_recipe("smoke", options.overrides)


OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
UPDATE = "update the driver, install a torch for it, or use --device cpu"


@pytest.mark.parametrize(
    ("built", "found", "why", "do"),
    [
        (None, "", "this torch is built without CUDA", "use --device cpu"),
        ("13.0", "No CUDA GPUs are available", "torch finds no GPU", "use --device cpu"),
        ("13.0", "Found no NVIDIA driver on your system. Please", "torch finds no GPU", "use --device cpu"),
        ("13.0", OLD, "The NVIDIA driver on your system is too old (found version 11040)", UPDATE),
    ],
)
def test_no_cuda_when_asked_for(
    built: str | None, found: str, why: str, do: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    def init() -> None:
        raise RuntimeError(found)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(UserError) as caught:
        run_options({"device": "cuda"})
    assert str(caught.value) == f"--device cuda: CUDA is not available: {why}; {do}"
    assert caught.value.code == ExitCode.ENVIRONMENT
    assert run_options({"device": "auto"}).device == "cpu"
    assert ("computing on the CPU: The NVIDIA driver" in caplog.text) == (found == OLD)


@pytest.mark.parametrize(
    ("capability", "fits"), [((9, 0), True), ((8, 9), True), ((7, 0), False), ((12, 1), True), ((10, 3), False)]
)
def test_a_gpu_that_torch_has_no_kernels_for(
    capability: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90", "sm_120", "compute_120"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    if fits:
        assert run_options({"device": "cuda"}).device == "cuda"
        return
    name = ".".join(map(str, capability))
    with pytest.raises(UserError, match=f"has no kernels for capability {name} of Tesla V100; install a torch built"):
        run_options({"device": "cuda"})


def test_no_cuda_from_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert frame.main(["distill", "--device", "cuda"]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().err == (
        "error: --device cuda: CUDA is not available: this torch is built without CUDA; use --device cpu\n"
    )


def test_auto_takes_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    assert run_options({"device": "auto"}).device == "cuda"
    assert run_options({"device": "cpu"}).device == "cpu"


def test_threads_are_set_at_once() -> None:
    import torch

    before = torch.get_num_threads()
    try:
        assert told("--device", "cpu", "--threads", "1").threads == 1
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_threads_are_measured_by_the_commands_of_recipes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    before = torch.get_num_threads()
    assert told("--device", "cpu", "--threads", "auto").threads == "auto"
    assert torch.get_num_threads() == before, "training measures, later"
    context = click.Context(frame.cli)
    found = {name: frame.cli.get_command(context, name) for name in frame.cli.list_commands(context)}
    counts = {name: one.type for name, c in found.items() if c for one in c.params if "--threads" in one.opts}
    assert all(isinstance(kind, ThreadCount) for kind in counts.values())
    takes = {name for name, kind in counts.items() if kind.measured}  # type: ignore[attr-defined]
    assert takes == {
        "distill", "finetune", "pretrain", "prune-layers", "prune-width", "prune-vocab", "share", "factorize",
        "drop-tokens", "make-static", "reduce-dimensions",
        "sparsify", "quantize", "run",
    }  # fmt: skip
    assert {*counts} - takes >= {"fit", "predict", "benchmark", "evaluate", "export", "compare"}
    assert frame.main(["fit", "FOLDER", "--threads", "auto"]) == ExitCode.INPUT
    assert capsys.readouterr().err == (
        "error: invalid value for '--threads': auto compares training steps, so only the commands of recipes take it; "
        "give a number; see `compress fit --help`\n"
    )


def test_threads_auto_takes_one_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert frame.main(["distill", "--recipe", "smoke", "--threads", "auto", "--dry-run"]) == ExitCode.INPUT
    assert capsys.readouterr().err == (
        "error: --threads auto: auto does not support several processes; give the number of threads of each process, "
        "such as 1\n"
    )


def test_overrides_are_plain_values() -> None:
    assert Override("a", 1, "--a 1") == Override("a", 1, "--a 1")


def test_an_output_that_no_file_system_takes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["distill", "--recipe", "distilbert", "--output", "x" * 5000, "--dry-run"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: --output: the path is too long: 5,000 bytes, one name of 5,000; use at most 255 bytes for each name "
        "and 4,095 for the whole path"
    )
