"""`compress.load(model)`: a model folder as an object that answers, measures itself and writes itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from compress.api.command import call, call_for, naming_keywords, path_text
from compress.api.data_input import Data, data_name
from compress.api.model_input import ModelLike, model_name
from compress.api.result import Result
from compress.errors import UserError, printable
from compress.onnx.runtimes import RUNTIMES, Runtime

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from compress.contracts import Batch
    from compress.data.task import Answer
    from compress.encoder.config.encoder import EncoderConfig
    from compress.encoder.modules.model import Model as TorchModel
    from compress.predict.embedder import Embedder
    from compress.predict.predictor import Predictor
    from compress.predict.ranking import RankedDocument


Device: TypeAlias = Literal["auto", "cpu", "cuda"]
Precision: TypeAlias = Literal["auto", "fp32", "bf16"]


class Model:
    """A model folder. path: where it is.  Weights are read on first use."""

    def __init__(
        self,
        path: Path,
        *,
        device: Device = "auto",
        runtime: Runtime | Literal["auto"] | None = None,
        precision: Precision = "auto",
    ) -> None:
        for name, given, known in (
            ("device", device, get_args(Device)), ("runtime", runtime, (None, "auto", *RUNTIMES)),
            ("precision", precision, get_args(Precision)),
        ):  # fmt: skip
            if given not in known:
                do = f"use {', '.join(one for one in known if one is not None)}"
                raise UserError(f"{given!r} is not a {name}", where=name, do=do)
        self.path = Path(path)
        self._device: Device = device
        self._runtime: Runtime | Literal["auto"] | None = runtime
        self._precision: Precision = precision

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r})"

    # --- answers --------------------------------------------------------------------------------------------------

    def predict(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None, *, max_length: int | None = None
    ) -> list[Answer]:
        """The answer to each text. Each has `as_json()`; what else it has depends on the task, such as `label` and
        `probability` of a class.

        pairs: the second text of each; of a model that answers questions, `texts` are the questions and `pairs` their
        contexts.  max_length: in tokens; None: what the model was trained on. Raises UserError for a model without a
        task head, for an empty text, and for texts that are not what its task reads.
        """
        given, seconds = _list_pairs(texts, pairs)
        return self._predictor.predict(given, seconds, max_length=max_length) if given else []

    def rank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, max_length: int | None = None
    ) -> list[RankedDocument]:
        """The documents sorted for the query, best first, by a reranker or by the similarity of an embedding model's
        vectors. Each has `index` (its place among `documents`), `score` and `document`. An embedding model reads the
        query and the documents after the prompts of the folder that have these names.

        top: how many; None: all.  max_length: of query and document, in tokens; None: what the model was trained on.
        Raises UserError for other models, and for an empty query or document.
        """
        from compress.predict.ranking import rank_documents

        (asked,) = _list_texts([query], "query")
        given = _list_texts(documents, "document")
        return rank_documents(self._predictor, asked, given, top=top, max_length=max_length)

    def embed(self, texts: str | Sequence[str], *, prompt: str | None = None) -> np.ndarray:
        """(N, width) float32: a vector of each text, after a prompt, pooled and post-processed as the folder says; as
        `SentenceTransformer.encode` gives it.

        prompt: the name of one of the folder's prompts, such as "query"; None: its default one. An embedding model
        answers in its runtime, which of a quantized one is its ONNX file; other models are computed in torch. Raises
        UserError for a prompt that the folder does not have, and for an empty text.
        """
        import numpy as np

        given = _list_texts(texts)
        if not self._embeds or not given:
            return self._embedder.with_prompt(prompt)(given)
        return np.stack([answer.vector for answer in self._predictor.with_prompt(prompt).predict(given)])

    def batches(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> list[Batch]:
        """The texts as `torch_module` reads them: packed tokens, `batch.row_ids` says which text each row is."""
        from compress.data.batches.evaluation_batches import evaluation_batches
        from compress.predict.predictor import MAX_TOKENS

        one = self._predictor
        length = min(one.meta.max_length or one.max_length, one.max_length)
        task, (given, seconds) = one.task_for(paired=pairs is not None), _list_pairs(texts, pairs)
        return list(evaluation_batches(task.encode_texts(one.tokenizer, given, seconds, max_length=length), MAX_TOKENS))

    # --- figures --------------------------------------------------------------------------------------------------

    def evaluate(
        self, data: Data, *, against: ModelLike | None = None, split: str = "test", quiet: bool = False, **options: Any
    ) -> Result:
        """Quality with 95 % intervals, size and speed on labelled data: `compress evaluate`.

        data: rows without splits are all measured.  against: a model to compare with, row by row.  options: flags of
        the command, underscored. Raises UserError as the command does.
        """
        told = {"data": data_name(data, split), "split": split, **self._options("evaluate", options)}
        if against is not None:
            told["against"] = model_name(against, "against")
        return call_for(Result, "evaluate", told, str(self.path), quiet=quiet)

    def benchmark(self, *others: ModelLike, quiet: bool = False, **options: Any) -> Result:
        """Latency and throughput on this machine, timed in turn with `others`: `compress benchmark`.

        options: flags of the command, underscored: `data="reviews.csv"` for texts of data, or `length=128`;
        `threads=1, batch=8, repeats=50`.
        """
        names = [str(self.path), *map(model_name, others)]
        return call_for(Result, "benchmark", self._options("benchmark", options), *names, quiet=quiet)

    # --- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Model:
        """The same model folder at `path`, which must not exist; returns that. Raises UserError where it does."""
        from compress.modelfolder.push import list_files
        from compress.storage import atomic

        target = Path(path_text(path, "path")).expanduser()
        files = atomic.read_manifest(self.path) if atomic.is_ours(self.path) else list_files(self.path)
        with atomic.new_folder(target) as temp:
            for name in files:
                atomic.write_bytes(temp / name, (self.path / name).read_bytes())
        return self._at(target)

    def export(
        self,
        to: Literal["onnx", "openvino", "hf", "pyfunc", "web"] = "onnx",
        output: str | Path | None = None,
        *,
        data: Data | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> Model:
        """Write the model for another program: `compress export`. Returns what was written; of "pyfunc" and "web",
        which are no model folders, only its `path` is of use.

        output: a new folder; None: beside this one, `<name>-<to>`.  data: rows that the file is checked on; None:
        random tokens.  Raises UserError where the file does not answer as the model does, and where `output` exists.
        """
        target = self.path.with_name(f"{self.path.name}-{to}")
        if output is not None:
            target = Path(path_text(output, "output"))
        told: dict[str, Any] = {"to": to, "output": target, **options}
        if data is not None:
            told["data"] = data_name(data, "test")
        call("export", told, str(self.path), quiet=quiet)
        return self._at(target)

    def push(self, repository: str, *, private: bool = False, quiet: bool = False, **options: Any) -> Result:
        """Upload the folder to a repository of the Hugging Face Hub: `compress push`. Returns its address and commit.

        repository: `hf:org/name`; made where there is none.  Raises UserError without a token that may write there.
        """
        return call_for(Result, "push", {"private": private, **options}, str(self.path), repository, quiet=quiet)

    # --- parts ----------------------------------------------------------------------------------------------------

    @property
    def torch_module(self) -> TorchModel:
        """The network, in evaluation mode, on the device. Called with a packed batch: `module(batch, Needs(...))`; see
        `batches`. What changes it here does not change the folder."""
        return self._predictor.reference

    @property
    def config(self) -> EncoderConfig:
        """The shape of the encoder."""
        from compress.modelfolder import folder

        return folder.inspect(self.path).config

    @property
    def label_names(self) -> list[str]:
        """Of the task head, in order of their ids; empty without one."""
        from compress.modelfolder.cascade import inspect

        return list(inspect(self.path).label_names)

    def _at(self, path: Path) -> Model:
        return Model(path, device=self._device, runtime=self._runtime, precision=self._precision)

    def _options(self, command: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options with how this model is computed, where they do not say otherwise."""
        from compress.modelfolder.meta import is_cascade

        runtime = self._runtime
        if runtime == "auto" and command == "evaluate":  # which takes a runtime by its name
            runtime = None if is_cascade(self.path) else self._predictor.runtime
        own = {"device": self._device, "runtime": runtime, "precision": self._precision}
        return {**{key: value for key, value in own.items() if value is not None}, **options}

    @cached_property
    @naming_keywords("predict")
    def _resolved_device(self) -> str:
        from compress.cli.options import resolve_device

        return resolve_device(self._device)

    @cached_property
    @naming_keywords("predict")
    def _predictor(self) -> Predictor:
        from compress.console import Console
        from compress.predict.fastest import open_in_runtime

        how = {"device": self._resolved_device, "precision": self._precision}
        return open_in_runtime(self.path, self._runtime, Console(quiet=True, json=True), **how)

    @cached_property
    def _embeds(self) -> bool:
        from compress.modelfolder.cascade import inspect

        return inspect(self.path).is_embedder

    @cached_property
    @naming_keywords("predict")
    def _embedder(self) -> Embedder:
        from compress.predict.embedder import Embedder

        return Embedder(self.path, device=self._resolved_device, precision=self._precision)


def load(
    model: ModelLike | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: Device = "auto",
    runtime: Runtime | Literal["auto"] | None = None,
    precision: Precision = "auto",
) -> Model:
    """A model as an object.

    model: a folder, `hf:org/name[@revision]`, `runs:/…`, `models:/name@alias`, or a model of
    transformers with its `tokenizer`, which is written to the cache.  device: "auto" is the GPU if there is one.
    runtime: what computes the answers; None: torch, of a quantized model its ONNX file; "auto": the fastest on this
    machine whose outputs match, timed at the first answer (a few seconds).  precision: of weights and matrix products;
    "auto" is bf16 on a GPU that computes in it, else fp32.
    Raises UserError when there is no such model, and for a device, runtime or precision that there is not.
    """
    from compress.modelfolder.resolve import resolve

    name = model_name(model if tokenizer is None else (model, tokenizer))  # type: ignore[arg-type]
    return Model(resolve(name), device=device, runtime=runtime, precision=precision)


def _list_pairs(texts: str | Iterable[str], pairs: str | Iterable[str] | None) -> tuple[list[str], list[str] | None]:
    """The texts, and the second text of each if there are any. Raises UserError as `_list_texts`."""
    given = _list_texts(texts)
    seconds = None if pairs is None else _list_texts(pairs, "second text")
    if seconds is not None and len(seconds) != len(given):
        why = f"{len(given)} and {len(seconds)}"
        raise UserError("there are not as many second texts as first ones", why=why, do="give one of each")
    return given, seconds


def _list_texts(texts: str | Iterable[str], name: str = "text") -> list[str]:
    """One text, or several. Raises UserError for what is no string, such as a missing value of a DataFrame, and for an
    empty text."""
    from compress.predict.rows.inputs import require_texts

    if not isinstance(texts, Iterable):
        why = f"it is {printable(repr(texts), 40)} ({type(texts).__name__})"
        raise UserError(f"not a {name} or a list of them", where="texts", why=why)
    given = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(given, start=1):
        if not isinstance(text, str):
            why = f"it is {printable(repr(text), 40)} ({type(text).__name__})"
            raise UserError(f"{name} {number} of {len(given)} is not a string", why=why)
    require_texts(name, given)
    return given
