"""CUDA graphs of the simulated device: a replay computes the captured operators again, in the same memory.

As on a GPU, a capture computes nothing: what it changed of earlier tensors is put back. What the host reads or decides
meanwhile is not recorded, so that a replay has the numbers of the capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Graph:
    """The operators of one capture. replays: how often they were computed again."""

    def __init__(self) -> None:
        self._operators: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self._before: list[tuple[Any, Any]] = []
        self.replays = 0

    def pool(self) -> tuple[int, int]:
        """Of its memory."""
        return (0, 1)

    def run(self, schema: Any, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute an operator, and note it."""
        names = [argument.name for argument in schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        for x in _list_tensors([given.get(name) for name in written]):
            self._before.append((x, x.detach().clone()))
        made = kernel(*args, **kwargs)
        self._operators.append((kernel, args, kwargs, made))
        return made

    def put_back(self) -> None:
        """What the operators changed in place is as it was."""
        while self._before:
            tensor, before = self._before.pop()
            tensor.detach().copy_(before)

    def replay(self) -> None:
        """Compute all operators again."""
        import torch

        self.replays += 1
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # all tensors are those inside
            for kernel, args, kwargs, made in self._operators:
                again = kernel(*args, **kwargs)
                for place, value in zip(_list_tensors(made), _list_tensors(again), strict=True):
                    if place is not value:
                        place.detach().copy_(value)


_capturing: Graph | None = None


def is_capturing() -> bool:
    """Whether operators are being captured."""
    return _capturing is not None


def capture(schema: Any, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Compute an operator for the graph that is being captured."""
    assert _capturing is not None
    return _capturing.run(schema, kernel, args, kwargs)


@contextlib.contextmanager
def record_graph(graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
    """Stands for torch.cuda.graph."""
    import torch

    global _capturing
    state, _capturing = torch.get_rng_state(), graph
    try:
        yield
    finally:
        _capturing = None
        torch.set_rng_state(state)
        graph.put_back()


def _list_tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
