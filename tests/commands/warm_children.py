"""What `limited_child.run` starts, forked from a process that has imported torch: importing it takes two seconds."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from child_server import ChildServer, answer_in_forks

from compress.errors import printable
from compress.storage import limited_child
from compress.storage.limited_child import Done


class WarmChildren(ChildServer):
    """Runs scripts as `limited_child` does, limits included; only the interpreter is not a new one."""

    def __init__(self) -> None:
        super().__init__(__file__, OMP_NUM_THREADS="1")

    def run(
        self,
        script: str,
        given: dict[str, Any],
        *,
        seconds: int,
        memory: int | None,
        wait: float,
        written: int | None = 0,
    ) -> Done:
        limits = {"seconds": seconds, "memory": memory, "written": written}
        code, said = self.answer({"script": script, "given": {**given, "limits": limits}})
        lines = tuple(said.splitlines())
        return Done(code, printable(lines[0], 160) if lines else "", lines)


def _serve() -> None:
    import safetensors.torch  # noqa: F401
    import torch

    torch.set_num_threads(1)
    answer_in_forks(_run, 1)


def _run(asked: dict[str, Any]) -> int:
    sys.stdin = io.StringIO(json.dumps(asked["given"]))
    try:
        exec(compile(limited_child._BEGIN + asked["script"], "child", "exec"), {"__name__": "__main__"})
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BaseException:
        return 1
    finally:
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    _serve()
