"""`--deterministic`: torch repeats, cuBLAS too, and an operator that cannot is one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compress.errors import ExitCode, UserError
from compress.training import environment, precision
from compress.training.deterministic import WORKSPACE, report_nondeterministic, set_deterministic


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Whatever a test sets."""
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    yield
    set_deterministic(False)
    settings.fill_uninitialized_memory = filled


def test_it_is_on_until_a_command_without_it() -> None:
    environ: dict[str, str] = {}
    set_deterministic(True, environ)
    assert torch.are_deterministic_algorithms_enabled()
    assert environ == {WORKSPACE: ":4096:8"}
    assert environment.describe(torch.device("cpu"), "fp32")["deterministic"] == "yes"
    with precision.allow_tf32("bf16", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "highest"
    set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_a_program_turned_on_itself_stays_on() -> None:
    torch.use_deterministic_algorithms(True)
    set_deterministic(False)
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)


def test_a_workspace_that_does_not_repeat_is_rejected() -> None:
    with pytest.raises(UserError, match=r"cuBLAS does not repeat its results with .*=:0:0") as caught:
        set_deterministic(True, {WORKSPACE: ":0:0"})
    assert caught.value.code == ExitCode.ENVIRONMENT
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operator_that_cannot_repeat_is_one_line() -> None:
    said = "cumsum_cuda_kernel does not have a deterministic implementation, but you set ..."
    with (
        pytest.raises(UserError, match=r"^--deterministic: cumsum_cuda_kernel has no deterministic implementation"),
        report_nondeterministic(),
    ):
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="shape"), report_nondeterministic():
        raise RuntimeError("shape mismatch")
