"""The example of docs/code.md is an objective."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from objective_cases import ar, batch_of

from compress.contracts import EncoderOutput, Objective

PAGE = Path(__file__).parents[2] / "docs" / "code.md"


def test_the_example_is_what_an_objective_must_be() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), made)
    one = made["Objective"](clip=0.5)
    asked = {*Objective.__annotations__, *(name for name in vars(Objective) if not name.startswith("_"))}
    assert [name for name in sorted(asked) if not hasattr(one, name)] == []
    ours, theirs = ar((3, 2), 2, 0.3), ar((3, 2), 2, 1.1)
    outputs = [EncoderOutput(torch.zeros(3, 4), logits=x) for x in (ours, theirs)]
    batch = batch_of([1, 1, 1])
    expected = (ours - theirs).clamp(-0.5, 0.5).square().mean()
    torch.testing.assert_close(one(*outputs, batch), expected)
    assert one.count(batch) == 3
