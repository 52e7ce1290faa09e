"""An exported file in onnxruntime on a GPU: by its CUDA provider, or by TensorRT, which was never run (experimental).

Inputs are padded on the host and copied once; inputs and outputs lie in memory of torch on the device, to which the
session is bound, so that nothing else is copied.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.parcel import Parcel
from compress.errors import ExitCode, UserError, list_some
from compress.onnx.axes import LENGTH
from compress.onnx.runtimes import PROVIDERS, Runtime, make_missing_error
from compress.onnx.session import FileSession, answer_in, pad_batch, unreadable
from compress.onnx.start import Source, start_onnxruntime

SHARE = 0.5
"""Of the memory that is free on the GPU: what a session may take."""
KINDS: Mapping[str, tuple[torch.dtype, Any]] = {
    "tensor(float)": (torch.float32, np.float32),
    "tensor(float16)": (torch.float16, np.float16),
    "tensor(int64)": (torch.int64, np.int64),
}
PLACES, PADDED = "places", "padded"


def list_providers(
    runtime: Runtime, precision: Literal["fp32", "bf16"], memory: int
) -> list[tuple[str, dict[str, str]]]:
    """What onnxruntime is given: providers with their options, the first that can compute an operator does.

    precision: bf16 stands for the usual one of a GPU: TF32 in the CUDA provider, fp16 where TensorRT finds it faster,
    since the file is in fp32.  memory: bytes that the session may take.
    """
    usual = {"fp32": "0", "bf16": "1"}[precision]
    cuda = {
        "device_id": "0",
        "gpu_mem_limit": str(memory),
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": usual,
    }
    tensorrt = {"device_id": "0", "trt_max_workspace_size": str(memory), "trt_fp16_enable": usual}
    found = [("CUDAExecutionProvider", cuda)]
    return found if runtime == "onnxruntime-cuda" else [("TensorrtExecutionProvider", tensorrt), *found]


def computed_in(runtime: Runtime, precision: Literal["fp32", "bf16"]) -> str:
    """The precision of `list_providers`, for people."""
    return {"fp32": "fp32", "bf16": "TF32" if runtime == "onnxruntime-cuda" else "fp16"}[precision]


def require_provider(runtime: Runtime) -> None:
    """Raise UserError unless the installed onnxruntime has the runtime's provider."""
    try:
        import onnxruntime
    except ImportError as error:
        raise make_missing_error(error, "onnxruntime-gpu") from error
    there = onnxruntime.get_available_providers()
    if PROVIDERS[runtime] not in there:
        raise UserError(
            f"this onnxruntime has no {PROVIDERS[runtime]}",
            where=f"--runtime {runtime}",
            why=f"it has {list_some(there, 4)}",
            do="pip uninstall onnxruntime, then pip install 'compress-bert[onnxruntime-gpu]'",
            code=ExitCode.ENVIRONMENT,
        )


class BoundSession(FileSession):
    """A session of onnxruntime whose inputs and outputs lie in torch's memory on `device`."""

    def __init__(self, session: Any, device: torch.device, where: str) -> None:
        """where: what a file that cannot be bound is called."""
        self.session, self.device = session, device
        self.inputs = [entry.name for entry in session.get_inputs()]
        self._entries = session.get_outputs()
        self.outputs = [entry.name for entry in self._entries]
        self.per_token = [entry.shape[1:2] == [LENGTH] for entry in self._entries]
        unknown = [e.type for e in self._entries if e.type not in KINDS or any(_is_open(x) for x in e.shape[2:])]
        if unknown:
            raise UserError("the outputs of this file are not supported", where=where, why=f"found {unknown[0]}")

    def infer(self, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return self.session.run(self.outputs, dict(feed))

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        return {name: value.cpu().numpy() for name, value in self.run_on_device(batch).items()}

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        assert needs == Needs(logits=True), needs
        return EncoderOutput(last_hidden=torch.empty(0), logits=answer_in(self.run_on_device(batch), torch.stack))

    def run_on_device(self, batch: Batch) -> dict[str, Tensor]:
        """As `run`, of tensors on the device. A batch that was brought to the device before is padded once."""
        if batch.host is None:
            return self.answer(self.load(batch))
        if PADDED not in batch.memo:
            batch.memo[PADDED] = self.load(batch)
        return self.answer(batch.memo[PADDED])

    def load(self, batch: Batch) -> dict[str, Tensor]:
        """The batch padded on the device: inputs (B, L) by name, and the places of its real tokens among all, (T,)."""
        real, feed = pad_batch(batch.on_host)
        arrays = {**{name: feed[name] for name in self.inputs}, PLACES: np.flatnonzero(real)}
        on_host = {name: torch.from_numpy(x) for name, x in arrays.items()}
        return Parcel({"": on_host}, pinned=self.device.type == "cuda").to(self.device)[""]

    def answer(self, loaded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """loaded: by `load`."""
        inputs = {name: loaded[name] for name in self.inputs}
        found = self._bind_and_run(inputs, tuple(inputs[self.inputs[0]].shape))
        return {
            name: value.flatten(0, 1).index_select(0, loaded[PLACES]) if each else value
            for (name, value), each in zip(found.items(), self.per_token, strict=True)
        }

    def _bind_and_run(self, inputs: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
        """shape: rows and tokens of each."""
        binding, place = self.session.io_binding(), (self.device.type, self.device.index or 0)
        found = {}
        for name, x in inputs.items():
            binding.bind_input(name, *place, np.int64, tuple(x.shape), x.data_ptr())
        for entry in self._entries:
            sizes = [fixed if not _is_open(fixed) else size for fixed, size in zip(entry.shape, shape, strict=False)]
            kind, numpy_kind = KINDS[entry.type]
            found[entry.name] = torch.empty(*sizes, *entry.shape[2:], dtype=kind, device=self.device)
            made = found[entry.name]
            binding.bind_output(entry.name, *place, numpy_kind, tuple(made.shape), made.data_ptr())
        if self.device.type == "cuda":  # the session has a stream of its own
            torch.cuda.current_stream(self.device).synchronize()
        self.session.run_with_iobinding(binding)
        return found


def open_on_gpu(source: Source, runtime: Runtime, *, precision: Literal["fp32", "bf16"] = "bf16") -> BoundSession:
    """A float file on the current GPU. Raises UserError where the provider is missing or does not start, and for a
    file that it cannot read."""
    require_provider(runtime)
    where = "the exported model" if isinstance(source, bytes) else str(source)
    memory = math.floor(SHARE * torch.cuda.mem_get_info()[0])
    try:
        with _silence_onnxruntime():
            session = start_onnxruntime(source, 1, list_providers(runtime, precision, memory))
    except Exception as error:  # onnxruntime has a class of its own for every complaint
        raise unreadable(runtime, source, error) from error
    started = session.get_providers()
    if PROVIDERS[runtime] not in started:  # onnxruntime goes on without a provider whose libraries are missing
        raise UserError(
            f"{PROVIDERS[runtime]} did not start",
            where=f"--runtime {runtime}",
            why=f"onnxruntime would use {list_some(started, 4)}",
            do="install the libraries that it needs (CUDA, cuDNN; TensorRT: pip install tensorrt)",
            code=ExitCode.ENVIRONMENT,
        )
    return BoundSession(session, torch.device("cuda", torch.cuda.current_device()), where)


@contextmanager
def _silence_onnxruntime() -> Iterator[None]:
    """Without what it logs of providers, and prints where one does not start: what is to be said of that, an error
    says."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


_WARNING, _FATAL = 2, 4
"""Levels of onnxruntime's log; by itself it begins with warnings."""


def _is_open(size: Any) -> bool:
    """Whether a size of a shape depends on the batch."""
    return not isinstance(size, int)
