"""Several processes that train one model: each reads its own rows of every step, gradients are added over all.

`torchrun --nproc-per-node N -m compress …` starts them. The first one (rank 0) leads: it alone writes and talks, and
what it knows the others are told. A validation computes its batches in all processes, and its figures in the first one,
from the outputs of all. A loss is a mean over what the whole step counts, so a process's share is
weighed by its part of that count, and the sum over the processes is the gradient of one process that reads all rows.

The gradients are added once a step, by torch's collectives, while the last backward pass of the step goes on. It is not
DistributedDataParallel, which wants as many backward passes in every process and the same parameters in each: rows are
cut into micro-batches by their tokens, and the last step of an epoch may leave a process without any. What is agreed
upon between processes travels between CPUs (gloo), so that an accelerator is not waited for, and one process may
measure for minutes while the others wait; gradients travel where they are (NCCL on GPUs), in a group of their own that
waits for minutes only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from compress.contracts import BatchSource
from compress.errors import ExitCode, Stopped, UserError
from compress.training import rng
from compress.training.gradients import GradientSum
from compress.training.ranks import Ranks, ranks
from compress.training.state import TrainState, model_tensors

PATIENCE = timedelta(days=30)  # whoever waits is told of a death by the closed connection; validation may take long
DEVICE_PATIENCE = timedelta(minutes=10)
"""Of collectives between GPUs, which learn of no death: all have met on the host at the beginning of the step, so that
only the rest of it may be waited for."""


class PeerError(Exception):
    """Another process failed, and says itself why. code: the exit code that it leaves with."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another process failed with code {code}")
        self.code = code


@runtime_checkable
class Shardable(Protocol):
    """A BatchSource whose rows of a step can be shared out."""

    def shard(self, rank: int, world: int) -> BatchSource:
        """The same steps with those of their rows that process `rank` of `world` reads, under the fingerprint of the
        whole: together the processes read each row once."""
        ...


_current: Team | None = None


def current() -> Team | None:
    """The team that this process is in; None where it works alone."""
    return _current


def validating_team() -> Team | None:
    """The team whose processes all validate now, each its share; None where this one computes by itself."""
    return _current if _current is not None and _current.validates else None


@contextlib.contextmanager
def join_launched_team(device: str) -> Iterator[Team | None]:
    """Inside this block, this process is in the team that torchrun started; None, and nothing done, without it.

    device: "cpu" or "cuda", where each process takes the GPU of its place. What ends the block in the leading process
    ends the others: they hear its exit code. Raises UserError (environment) for a process without a GPU of its own.
    """
    global _current
    place = ranks()
    if place.world == 1:
        yield None
        return
    if device == "cuda":
        count = torch.cuda.device_count()
        if place.local >= count:
            raise UserError(
                f"{place.beside} processes, but {count} GPUs on this machine",
                where="torchrun --nproc-per-node",
                do=f"start {count} processes, or use --device cpu",
                code=ExitCode.ENVIRONMENT,
            )
        torch.cuda.set_device(place.local)
    try:
        dist.init_process_group("gloo", timeout=PATIENCE)
        device_group = None
        if device == "cuda":  # an int is what those get that are left out of a group
            device_group = cast(dist.ProcessGroup, dist.new_group(backend="nccl", timeout=DEVICE_PATIENCE))
    except (RuntimeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise UserError("the processes cannot connect", where="torchrun", why=why, code=ExitCode.ENVIRONMENT) from error
    team = _current = Team(place, device_group)
    code: int = ExitCode.OK
    try:
        yield team
    except PeerError as error:
        code = error.code
        raise SystemExit(code) from None
    except BaseException as error:
        code = code_of(error)
        raise
    finally:
        _current = None
        if place.leads:
            team.dismiss(code)


def code_of(error: BaseException) -> int:
    """The exit code that a process leaves with because of `error`, never 0."""
    if isinstance(error, UserError | PeerError):
        return int(error.code)
    if isinstance(error, Stopped | KeyboardInterrupt):
        return int(ExitCode.STOPPED)
    return int(ExitCode.RESOURCES if isinstance(error, MemoryError) else ExitCode.BUG)


class Team:
    """The processes of a run, as one of them sees them.

    Whatever may fail in one process is followed by an exchange, in which it can say so: all leave at the same place.
    """

    def __init__(self, place: Ranks, device_group: dist.ProcessGroup | None = None) -> None:
        """device_group: of the collectives between devices; None: they are those of the host."""
        self.place, self._device_group = place, device_group
        self.lost = False
        """Whether the connection to the others is no more, or in a state that nobody can speak in."""
        self.tells = False
        """Whether this process is the first of those that failed, and so the one to say why."""
        self.validates = False
        """Whether all processes are in the same validation."""
        self._asked = self._over = False
        self._room = 0
        self._names: list[str] = []
        self._sum: GradientSum | None = None
        self._adds = False
        """Whether a step's gradients are under way: all processes send all of them before they say anything else."""

    # --- what a run is made of ---

    def take_share(self, source: BatchSource, batch_rows: int) -> BatchSource:
        """This process's share of `source`. Raises UserError for data and steps that cannot be shared out."""
        if batch_rows < self.place.world:
            raise UserError(
                f"{batch_rows} rows per step cannot be divided among {self.place.world} processes",
                where="training.batch_rows",
                do=f"use {self.place.world} or more",
            )
        if not isinstance(source, Shardable):
            raise UserError(
                "this stage's data cannot be divided among several processes",
                do="run it without torchrun, or with one process",
            )
        return source.shard(self.place.rank, self.place.world)

    def align(self, state: TrainState, names: Callable[[], Sequence[str]], identity: Mapping[str, str]) -> None:
        """Make every process continue from the state of the leading one.

        names: of the terms of the loss.  identity: what must be the same in all processes. Raises UserError where it
        is not, e.g. because a machine has other data.
        """
        self._asked = self._over = False
        self._room = 0
        self._exchange()
        self._names = list(names())
        self._room = max(len(self._names) + 1, len(state.optimizer.parameters))
        gpu = torch.cuda.get_device_name(state.device) if state.device.type == "cuda" else None
        told = self._told({"identity": dict(identity), "counters": state.counters(), "gpu": gpu})
        wrong = next((name for name, value in identity.items() if told["identity"].get(name) != value), None)
        if wrong is not None:
            raise UserError(
                f"{wrong} of process {self.place.rank} differs from the first process",
                why=f"{identity[wrong]} and {told['identity'].get(wrong)}",
                do="use the same files on every machine",
            )
        if gpu != told["gpu"]:  # they would round otherwise, and the slower one would set the pace
            raise UserError(
                f"the GPU of process {self.place.rank} is not of the same model as the first process's",
                where="torchrun",
                why=f"{gpu} and {told['gpu']}",
                do="choose GPUs of one model with CUDA_VISIBLE_DEVICES",
                code=ExitCode.ENVIRONMENT,
            )
        self._exchange()
        weights, moments = model_tensors(state.module), state.optimizer.state()
        shapes = self._told({name: [list(t.shape), str(t.dtype)] for name, t in moments.items()})
        if not self.place.leads:
            kinds = {str(kind): kind for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}
            moments = {n: torch.empty(s, dtype=kinds[d], device=state.device) for n, (s, d) in shapes.items()}
        with _peers(self), torch.no_grad():
            for tensor in (*weights.values(), *moments.values()):
                dist.broadcast(tensor, src=0, group=self._group_for(tensor))
        if not self.place.leads:
            state.adopt(moments, told["counters"])
        self.release()
        self._sum = GradientSum(list(state.optimizer.parameters.values()), self._begin_to_add)

    # --- a step ---

    def seed(self, seed: int, step: int) -> None:
        """Set the random generators for a step: others in each process, the same whenever the step is made again."""
        parts = f"{seed} {self.place.rank} {step}".encode()
        rng.seed(int.from_bytes(hashlib.blake2b(parts, digest_size=7).digest(), "little"))

    def totals(self, counts: Mapping[str, int], tokens: int, stop: bool) -> tuple[dict[str, int], int]:
        """What the whole step counts, by term, and its tokens. stop: whether this process was asked to stop."""
        mine = [counts.get(name, 0) for name in self._names]
        *sums, tokens = self._exchange([*mine, tokens], stop=stop)[: len(mine) + 1]
        if self._sum is not None:
            self._sum.begin()
            self._adds = True
        return {name: total for name, total in zip(self._names, sums, strict=True) if total}, tokens

    def expect_last_gradients(self) -> None:
        """The next backward pass is the last one of the step: what it computes may travel at once."""
        assert self._sum is not None
        self._sum.expect_last()

    def add(self, figures: dict[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Add the step's gradients, in place, and figures over the processes; returns the figures under `names`, in
        their order.

        A parameter that no process used keeps no gradient, as with one process.
        """
        assert self._sum is not None
        self._send_all(self._sum)
        used = self._exchange([int(is_used) for is_used in self._sum.used])
        self.lost = True  # until all is added: who runs out of memory now cannot say so
        nothing = torch.zeros((), device=figures[names[-1]].device)
        line = torch.stack([figures[name].detach().float() if name in figures else nothing for name in names])
        with _peers(self):
            dist.all_reduce(line, group=self._group_for(line))
            self._sum.arrive(used)
        self.lost = False
        return dict(zip(names, line.unbind(), strict=True))

    def release(self) -> None:
        """Leave the parameters that were trained alone."""
        if self._sum is not None:
            self._sum.remove()
        self._sum, self._adds = None, False

    def _begin_to_add(self, tensor: Tensor) -> Any:
        with _peers(self):
            return dist.all_reduce(tensor, group=self._group_for(tensor), async_op=True)

    def _send_all(self, gradients: GradientSum) -> None:
        """Before anything else is said after `totals`, also by a process that failed."""
        self._adds = False
        gradients.flush()

    def agree_to_stop(self, requested: bool) -> bool:
        """Whether all stop here: what was said at the last step, since all must stop at the same one."""
        self._over = self._asked
        return self._asked

    def finish(self) -> None:
        """The last word of a training: no process failed."""
        self._exchange()
        self._over = True

    @contextlib.contextmanager
    def share_rows(self) -> Iterator[None]:
        """Inside this block, which all processes enter, a validation shares its batches out."""
        self.validates = True
        try:
            yield
        finally:
            self.validates = False

    def lead(self, make: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What `make` gives in the leading process. All call it, since it may share its rows, and all are told."""
        made = make()
        self._meet()
        return {name: float(value) for name, value in self._told(made).items()}

    def gather(self, parts: Mapping[int, Any]) -> dict[int, Any] | None:
        """What all processes have, by numbers of which each has its own; None in all but the leading one."""
        self._meet()
        found: list[Any] | None = [None] * self.place.world if self.place.leads else None
        with _peers(self):
            dist.gather_object(dict(parts), found, dst=0)
        return None if found is None else {number: part for each in found for number, part in each.items()}

    def _meet(self) -> None:
        """All are well and go on. Raises PeerError, and Stopped where one of them was stopped in a validation."""
        self._exchange()
        if self._asked:
            self._over = True
            raise Stopped("stopped with another process")

    # --- orders, failures, the end ---

    def broadcast_order(self, order: Mapping[str, Any]) -> None:
        """Tell the others, who `receive_order`, what to train next."""
        self._object(dict(order))

    def receive_order(self) -> dict[str, Any]:
        """What the leading process announces; `{"end": code}` when there is nothing more to do."""
        return self._object(None)

    def report(self, error: BaseException) -> None:
        """Say that this process cannot go on because of an error that the others do not know of."""
        if self.lost or self._over or isinstance(error, PeerError):
            return
        self._over = True
        stopped = isinstance(error, Stopped)
        with contextlib.suppress(PeerError, Stopped):
            if self._adds and self._sum is not None:
                self._send_all(self._sum)
            self._exchange(stop=stopped, error=0 if stopped else code_of(error))

    def dismiss(self, code: int) -> None:
        """Of the leading process: tell the others, who `receive_order`, that the run is over."""
        if self.lost:
            return
        with contextlib.suppress(Stopped):
            self._object({"end": int(code)})
            dist.destroy_process_group()

    def leave(self) -> None:
        """Of the others, when all is well: else the connection's threads are still there when the interpreter ends, and
        now and then abort the process."""
        dist.destroy_process_group()

    def linger(self) -> None:
        """Of the others: wait until the leading process is gone, since torchrun ends all when one ends badly."""
        with contextlib.suppress(RuntimeError):
            dist.broadcast(torch.zeros(1), src=0)

    def _exchange(self, payload: Sequence[int] = (), *, stop: bool = False, error: int = 0) -> list[int]:
        """Numbers of this process → their sums over all. Raises PeerError when another process failed."""
        world = self.place.world
        vector = torch.zeros(1 + world + self._room, dtype=torch.int64)
        vector[0] = int(stop)
        vector[1 + self.place.rank] = error
        if payload:
            vector[1 + world : 1 + world + len(payload)] = torch.tensor(payload)
        with _peers(self):
            dist.all_reduce(vector)
        found = vector.tolist()
        self._asked = self._asked or found[0] > 0
        failed = {rank: code for rank, code in enumerate(found[1 : 1 + world]) if code}
        if failed:
            self._over = True
            self.tells = min(failed) == self.place.rank
            raise PeerError(failed[min(failed)])
        return found[1 + world :]

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """None: all processes, which meet on the host."""
        return None if tensor.device.type == "cpu" else self._device_group

    def _told(self, values: Any) -> Any:
        """JSON values of the leading process, in all."""
        data = json.dumps(values).encode() if self.place.leads else b""
        size = torch.tensor([len(data)])
        with _peers(self):
            dist.broadcast(size, src=0)
            raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            raw = raw if self.place.leads else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(raw, src=0)
        return json.loads(bytes(raw.tolist()))

    def _object(self, value: Any) -> Any:
        box = [value]
        with _peers(self):
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]


@contextlib.contextmanager
def _peers(team: Team) -> Iterator[None]:
    """Inside this block, a connection that breaks means that a process died: Stopped, since the run can go on."""
    try:
        yield
    except RuntimeError as error:
        team.lost = True
        raise Stopped("another process of this run died; the last checkpoint is kept") from error


class Alone:
    """One process by itself: what a `Team` is asked, answered without anybody else."""

    lost = False

    def take_share(self, source: BatchSource, batch_rows: int) -> BatchSource:
        return source

    def align(self, state: TrainState, names: Callable[[], Sequence[str]], identity: Mapping[str, str]) -> None: ...

    def seed(self, seed: int, step: int) -> None: ...

    def totals(self, counts: Mapping[str, int], tokens: int, stop: bool) -> tuple[Mapping[str, int], int]:
        return counts, tokens

    def expect_last_gradients(self) -> None: ...

    def add(self, figures: dict[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        return figures

    def release(self) -> None: ...

    def agree_to_stop(self, requested: bool) -> bool:
        return requested

    def share_rows(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lead(self, make: Callable[[], dict[str, float]]) -> dict[str, float]:
        return make()

    def finish(self) -> None: ...

    def report(self, error: BaseException) -> None: ...
