"""A CUDA device on the CPU, for tests: `import device` before torch, then `with device.simulate() as record:`.

A tensor on the device is a `DeviceTensor` around a CPU tensor, and each operator runs on the CPU tensors inside, so
that the code for CUDA runs with real numbers. What costs time on a GPU is counted in `Record`. Operators whose tensors
lie on different devices raise RuntimeError, as torch does. A copy to pinned memory on a stream of its own arrives when
somebody waits for it, and not before. A CUDA graph computes its operators again, in the same memory (`graphs.py`). Not
simulated: time, memory, kernels of CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import graphs
import shim

from compress.garbage import collect_seldom

shim.load()
collect_seldom()  # of the libraries that are imported now

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch._inductor.utils  # noqa: E402 - they look for CUDA once, and must find none
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils.weak import WeakIdKeyDictionary  # noqa: E402

aten: Any = torch.ops.aten
DEVICE = torch.device("cuda", 0)
ROOT = Path(__file__).parents[2]
PACKAGES = tuple(str(ROOT / name) for name in ("compress", "evaluation"))

# The host needs their values, or how many there are, before it can go on.
BLOCKING = {
    aten._local_scalar_dense,
    aten.bincount,
    aten.equal,
    aten.histc,
    aten.masked_select,
    aten.nonzero,
    aten.unique_consecutive,
    aten.unique_dim,
    aten._unique2,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
NO_KERNEL = {*ALLOCATIONS, aten.detach, aten.alias, aten.lift_fresh, aten._unsafe_view, aten._reshape_alias}


class Record:
    """waits: (what, line of ours) → times the host waited for the device, `synchronize` included.  copies: line →
    copies from the host.  kernels: operator → launches."""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()

    def clear(self) -> None:
        """Count from 0."""
        self.__init__()

    def totals(self) -> dict[str, int]:
        """Counts of each kind."""
        return {name: getattr(self, name).total() for name in ("waits", "copies", "kernels")}


record = Record()


def _find_line() -> str:
    """The innermost line of this project's packages."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGES):
        frame = frame.f_back
    if frame is None:
        return "outside"
    return f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"


def _wait(what: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if graphs.is_capturing():
        raise RuntimeError("operation not permitted when stream is capturing")
    record.waits[what, _find_line()] += 1
    if _Host.sync_debug_mode == "warn" and what != "synchronize":
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)


class _Host:
    """What torch.cuda remembers."""

    sync_debug_mode = "default"
    stream: Stream
    pinned = WeakIdKeyDictionary()
    """Tensors in pinned memory."""


class Stream:
    """Copies to pinned memory that were begun here; all else is computed at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._begun: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def begin(self, copy: Callable[[], object]) -> None:
        """Now, on the first stream; later, on another."""
        if self is DEFAULT:
            copy()
        else:
            self._begun.append(copy)

    def arrive(self) -> None:
        """What was begun is there."""
        with self._lock:
            while self._begun:
                self._begun.pop(0)()

    def wait_stream(self, stream: Stream) -> None:
        stream.arrive()

    def wait_event(self, event: Event) -> None:
        event.stream.arrive()

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _wait("synchronize")
        self.arrive()


DEFAULT = _Host.stream = Stream()


class Event:
    """The host's clock, since the device computes at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at, self.stream = 0.0, DEFAULT

    def record(self, stream: Stream | None = None) -> None:
        self.at, self.stream = time.perf_counter(), stream or _Host.stream

    def synchronize(self) -> None:
        _wait("synchronize")
        self.stream.arrive()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@contextlib.contextmanager
def _use_stream(stream: Stream) -> Iterator[None]:
    before, _Host.stream = _Host.stream, stream
    try:
        yield
    finally:
        _Host.stream = before


class DeviceTensor(torch.Tensor):
    """`host` as a tensor on the device."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=DEVICE,
        )
        made.host = host
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({self.host!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made: Tensor = DeviceTensor(self.host.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made
        return made

    def tolist(self) -> Any:
        _wait("tolist")
        return self.host.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Operators that name the device without having a tensor on it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and the guard of each operator would take as long as a small operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = kwargs.get("device")
        if DeviceTensor in types or (named is not None and torch.device(named).type == "cuda"):
            return _run(func, args, kwargs)
        made = func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            _Host.pinned[made] = True
        return made


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operator on the CPU tensors inside; its result is on the device, unless it was a copy to the host."""
    packet = func.overloadpacket
    tensors = [x for x in _list_arguments(args, kwargs) if isinstance(x, Tensor)]
    ours = [x for x in tensors if isinstance(x, DeviceTensor)]
    others = [x for x in tensors if not isinstance(x, DeviceTensor)]
    named = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if packet is aten.is_pinned:
        return False
    on_device = named != "cpu" and not (packet is aten.copy_ and not isinstance(args[0], DeviceTensor))
    if packet is aten.copy_ and not on_device and args[2:] == (True,) and args[0] in _Host.pinned:
        _Host.stream.begin(lambda: args[0].copy_(args[1].host))
        return args[0]
    _note(packet, args, kwargs, ours, others, on_device)
    host_args, host_kwargs = [_to_host(x) for x in args], {name: _to_host(x) for name, x in kwargs.items()}
    if named == "cuda":
        host_kwargs["device"] = torch.device("cpu")
    if packet is aten._to_copy and named is not None:
        host_kwargs.pop("non_blocking", None)
    name, aliases, is_pure = _describe(func)
    kernel: Any = KERNELS.get(name.partition(".")[0], func)
    if graphs.is_capturing() and not aliases:
        made = graphs.capture(func._schema, kernel, host_args, host_kwargs)
    else:
        made = kernel(*host_args, **host_kwargs)
    if not on_device:
        return args[0] if packet is aten.copy_ else made
    if packet not in NO_KERNEL and not aliases:
        record.kernels[name] += 1
    made = _to_device(made)
    return made if is_pure or not ours else return_and_correct_aliasing(func, args, kwargs, made)


# An operator takes and returns tensors by themselves or in one list. `torch.utils._pytree`, which looks for them at any
# depth, takes a third of the time of a step.


def _list_arguments(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, list | tuple):
            yield from x
        else:
            yield x


def _to_host(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(y.host if isinstance(y, DeviceTensor) else y for y in x)
    return x.host if isinstance(x, DeviceTensor) else x


def _to_device(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(_to_device(y) for y in x)
    return DeviceTensor(x) if isinstance(x, Tensor) and not isinstance(x, DeviceTensor) else x


@functools.cache
def _describe(func: Any) -> tuple[str, bool, bool]:
    """(an operator's name, whether it returns a view of what it was given, whether it neither does nor writes to it)"""
    returned, given = (
        [x.alias_info for x in xs if x.alias_info] for xs in (func._schema.returns, func._schema.arguments)
    )
    return func.name(), any(not alias.is_write for alias in returned), not returned and not given


def _note(packet: Any, args: Any, kwargs: dict[str, Any], ours: list, others: list, on_device: bool) -> None:
    """Count what the operator costs, and reject tensors of two devices."""
    copies = packet in (aten._to_copy, aten.copy_)
    if copies and not on_device:
        _wait("copy to the host")
    elif copies and others:
        record.copies[_find_line()] += 1
    elif ours and others and packet is not aten.set_:
        large = [x for x in others if x.dim()]
        if large and packet not in INDEXING:
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {packet}")
        record.copies[_find_line()] += len(large)
    if not ours:
        return
    if packet in BLOCKING:
        _wait(str(packet))
    if packet in INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        _wait("index by a mask")
    if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
        _wait("repeat_interleave without output_size")


# --- attention over sequences of different lengths, which torch has for CUDA only ---


def _sequences(
    tensors: tuple[Tensor, ...], bounds: Tensor, scale: float | None, window: tuple[int, int]
) -> Iterator[Any]:
    """Of each sequence: where it lies, its parts of the tensors (T, H, K) as (H, l, K) in fp32, its probabilities."""
    left, right = window
    for start, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
        parts = [x[start:end].float().transpose(0, 1) for x in tensors]
        scores = parts[0] @ parts[1].mT * _scale(tensors[0], scale)
        if max(window) >= 0:
            distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
            hidden = ((left >= 0) & (distance > left)) | ((right >= 0) & (-distance > right))
            scores = scores.masked_fill(hidden, float("-inf"))
        yield slice(start, end), parts, scores.softmax(-1)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _flash(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, dropout: float,
           is_causal: bool, debug: bool, *, scale: float | None = None, window_size_left: int = -1,
           window_size_right: int = -1, **_: Any) -> Any:  # fmt: skip
    assert q.dtype in (torch.bfloat16, torch.float16), q.dtype
    assert cu_q.dtype == torch.int32, cu_q.dtype
    assert q.shape[-1] % 8 == 0
    assert not is_causal
    random = torch.randint(2**40, (2,)) if dropout else torch.zeros(2, dtype=torch.int64)
    context = torch.empty_like(q)
    drop = _Dropped(random, dropout)
    for place, (_q, _k, value), shares in _sequences((q, k, v), cu_q, scale, (window_size_left, window_size_right)):
        context[place] = (drop(shares) @ value).transpose(0, 1).to(q.dtype)
    lse = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    return context, lse, random.to(torch.uint64), torch.zeros((), dtype=torch.uint64), q.new_empty(0)


def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor,
                    cu_k: Tensor, max_q: int, max_k: int, dropout: float, is_causal: bool, random: Tensor, *_: Any,
                    scale: float | None = None, window_size_left: int = -1, window_size_right: int = -1,
                    **__: Any) -> Any:  # fmt: skip
    made = [torch.empty_like(x) for x in (q, k, v)]
    drop, window = _Dropped(random.to(torch.int64), dropout), (window_size_left, window_size_right)
    for place, (query, key, value, above), shares in _sequences((q, k, v, grad), cu_q, scale, window):
        kept = drop(shares)
        shown = torch.where(kept == 0, 0.0, above @ value.mT) / (1 - dropout)
        scores = aten._softmax_backward_data(shown, shares, -1, torch.float32) * _scale(q, scale)
        for gradient, part in zip(made, (scores @ key, scores.mT @ query, kept.mT @ above), strict=True):
            gradient[place] = part.transpose(0, 1).to(q.dtype)
    return tuple(made)


class _Dropped:
    """Shares of attention of one sequence after another, some of them set to 0 by a seed. rate: of them."""

    def __init__(self, seed: Tensor, rate: float) -> None:
        self._random, self._rate = torch.Generator().manual_seed(int(seed[0])), rate

    def __call__(self, shares: Tensor) -> Tensor:
        if not self._rate:
            return shares
        return shares * (torch.rand(shares.shape, generator=self._random) >= self._rate) / (1 - self._rate)


# --- our own kernels ---


def _divergence(student: Tensor, teacher: Tensor, loss: Tensor, gradient: Tensor | None, temperature: float,
                slope: float) -> None:  # fmt: skip
    s, t = ((x.float() / temperature).log_softmax(1) for x in (student, teacher))
    loss.copy_((t.exp() * (t - s)).sum(1))
    if gradient is not None:
        gradient.copy_((s.exp() - t.exp()) * (temperature * slope))


def _cross_entropy(logits: Tensor, labels: Tensor, loss: Tensor, gradient: Tensor | None, slope: float) -> None:
    log_p, rows = logits.float().log_softmax(1), torch.arange(len(labels))
    loss.copy_(-log_p[rows, labels])
    if gradient is not None:
        p = log_p.exp()
        p[rows, labels] -= 1
        gradient.copy_(p * slope)


def _scale_numbers(numbers: Tensor, factor: Tensor) -> None:
    assert numbers.is_contiguous()
    numbers.copy_(numbers.float() * factor)


def _factor(like: Tensor, seed: Tensor | None, rate: float) -> Tensor | float:
    if seed is None:
        return 1.0
    random = torch.Generator().manual_seed(int(seed))
    return (torch.rand(like.shape, generator=random) >= rate) / (1 - rate)


def _add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor | None, made: Tensor,
              narrow: Tensor | None, means: Tensor | None, scales: Tensor | None, rate: float,
              eps: float) -> None:  # fmt: skip
    total = x.float() + added.float() * _factor(x, seed, rate)
    variance, mean = torch.var_mean(total, -1, correction=0)
    scale = (variance + eps).rsqrt()
    found = (total - mean[..., None]) * scale[..., None] * weight.float()
    found = found if bias is None else found + bias.float()
    for to, value in ((made, found), (narrow, found), (means, mean.flatten()), (scales, scale.flatten())):
        if to is not None:
            to.copy_(value)


def _add_norm_backward(wide: Tensor | None, narrow: Tensor | None, x: Tensor, added: Tensor, weight: Tensor,
                       seed: Tensor | None, means: Tensor, scales: Tensor, to_x: Tensor, to_added: Tensor,
                       sums: Tensor | None, rate: float) -> None:  # fmt: skip
    given = [g.float() for g in (wide, narrow) if g is not None]
    gradient, factor = sum(given[1:], given[0]), _factor(x, seed, rate)
    each = (*x.shape[:-1], 1)
    normed = (x.float() + added.float() * factor - means.view(each)) * scales.view(each)
    if sums is not None:
        sums.zero_()
        sums[0, 0] = (gradient * normed).flatten(0, -2).sum(0)
        sums[1, 0] = gradient.flatten(0, -2).sum(0)
    inner = gradient * weight.float()
    centred = inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True)
    to_x.copy_(centred * scales.view(each))
    to_added.copy_(centred * scales.view(each) * factor)


KERNELS: dict[str, Callable[..., Any]] = {
    "compress::add_norm_": _add_norm,
    "compress::add_norm_backward_": _add_norm_backward,
    "compress::scale_": _scale_numbers,
    "compress::divergence_": _divergence,
    "compress::cross_entropy_": _cross_entropy,
    "aten::_flash_attention_forward": _flash,
    "aten::_flash_attention_backward": _flash_backward,
}


# --- torch.cuda ---


def _set_sync_debug_mode(mode: str) -> None:
    warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)
    _Host.sync_debug_mode = mode


def _without_gradient(mode: bool = True) -> torch.no_grad:
    return torch.no_grad()


@contextlib.contextmanager
def report_one_device() -> Iterator[None]:
    """Inside, torch.cuda reports one device."""
    properties = SimpleNamespace(name="simulated", major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132)
    replies: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": graphs.is_capturing,
        "_is_compiled": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "get_arch_list": lambda: ["sm_80", "sm_90", "compute_90"],
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (properties.total_memory, properties.total_memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "synchronize": lambda device=None: _wait("synchronize"),
        "set_sync_debug_mode": _set_sync_debug_mode,
        "Event": Event,
        "Stream": Stream,
        "stream": _use_stream,
        "current_stream": lambda device=None: _Host.stream,
        "CUDAGraph": graphs.Graph,
        "graph": graphs.record_graph,
        "default_generators": (
            SimpleNamespace(clone_state=torch.get_rng_state, graphsafe_set_state=torch.set_rng_state),
        ),
    }
    with contextlib.ExitStack() as stack:
        for name, reply in replies.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, reply))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(mock.patch("compress.training.efficiency.PRODUCT", 16))
        stack.enter_context(mock.patch("compress.encoder.kernels.working.are_working", return_value=True))
        stack.enter_context(mock.patch("compress.encoder.kernels.add_norm.SMALLEST", 0))
        yield


@contextlib.contextmanager
def simulate() -> Iterator[Record]:
    """Inside, torch.cuda reports one device, and tensors can be on it."""
    record.clear()
    overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
    lifted = torch._C._only_lift_cpu_tensors()
    with contextlib.ExitStack() as stack:
        stack.enter_context(report_one_device())
        # A wrapper cannot be an inference tensor.
        stack.enter_context(mock.patch.object(torch, "inference_mode", _without_gradient))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(.., device=) copies from the host
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        stack.enter_context(_Factories())
        yield record
