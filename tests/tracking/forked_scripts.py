"""Scripts that are killed, each forked from a process that has imported mlflow: importing it takes seconds."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from child_server import ChildServer, answer_in_forks


@dataclass(frozen=True)
class Ended:
    """code: minus the signal that ended it."""

    code: int
    err: str


class ForkedScripts(ChildServer):
    """Runs Python code as `python -c CODE ARGUMENTS` does; only the interpreter is not a new one."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def run(self, code: str, *arguments: object, **environment: str) -> Ended:
        asked = {"code": code, "arguments": list(map(str, arguments)), "environment": environment}
        return Ended(*self.answer(asked))


def _serve() -> None:
    import sqlalchemy  # noqa: F401
    from mlflow.store.db import utils  # noqa: F401

    from compress.tracking.store import import_mlflow

    import_mlflow()
    answer_in_forks(_run, 1, 2)


def _run(asked: dict[str, Any]) -> int:
    os.environ.update(asked["environment"])
    sys.argv = ["-c", *asked["arguments"]]
    try:
        exec(compile(asked["code"], "child", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
