"""How a folder turns a text into one vector, in the format of sentence-transformers.

`modules.json` lists what follows the encoder: Pooling (mean, [CLS], max, weighted mean or last token), Dense (a matrix
and a bias) and Normalize. StaticEmbedding is the mean of rows of a word table: an encoder and its pooling in one.
Post-processing that is linear, such as whitening or the removal of components, is a Dense, so a folder that we write
loads there unmodified. A folder without the list means the mean of its tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from compress.encoder.config.heads import Pooling as Read
from compress.errors import UserError, did_you_mean, printable
from compress.modelfolder.fields import MAX_POSITIONS, MAX_WIDTH, Fields
from compress.storage import safe
from compress.storage.foreign import decode
from compress.storage.tensorfile import encode

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
OTHER_SETTINGS = tuple(
    f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)
"""Names of the same file in older folders."""
MAX_LENGTH = "max_seq_length"
Pooling = Literal["mean", "cls", "max", "weightedmean", "lasttoken"]

PACKAGE = "sentence_transformers."
TYPES = f"{PACKAGE}models."
_MODES: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
READS: dict[Pooling, Read] = {
    "mean": "mean", "cls": "first", "max": "max", "weightedmean": "weighted_mean", "lasttoken": "last",
}  # fmt: skip
"""The same as an embedding head calls them."""
NAMES: dict[Read, Pooling] = {read: name for name, read in READS.items()}
STATIC = "StaticEmbedding"
WIDTH, NEW_WIDTH = "word_embedding_dimension", "embedding_dimension"
VECTOR = "sentence_embedding"
PROMPTS = "config_sentence_transformers.json"
"""Prompts by name, which of them is the default, how vectors are compared, and how many of their numbers are kept."""
TRUNCATION = "truncate_dim"
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": False, "torch.nn.modules.activation.Tanh": True}
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Dense:
    """y = W·x + b, and tanh of it where `tanh`. weight: (out, in).  bias: (out,) or None."""

    weight: Tensor
    bias: Tensor | None = None
    tanh: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        y = torch.nn.functional.linear(x, self.weight, self.bias)
        return torch.tanh(y) if self.tanh else y


@dataclass(frozen=True)
class SentenceParts:
    """From a text's last hidden states to its vector: pooled, through each Dense, to length 1 where `normalize`, and
    cut to its first `truncate` numbers where this is given.

    max_length: of a text in tokens; None: what the encoder holds.  lowercase: texts are lower-cased first.  prompt:
    what is put before each text.  pools_prompt: whether the tokens of prompts are pooled.  static: of a word table.
    """

    pooling: Pooling = "mean"
    denses: tuple[Dense, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""
    pools_prompt: bool = True
    static: bool = False
    truncate: int | None = None

    def __call__(self, pooled: Tensor) -> Tensor:
        """(N, hidden) pooled states → (N, width)."""
        for dense in self.denses:
            pooled = dense(pooled)
        return (torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled)[..., : self.truncate]

    def width(self, hidden: int) -> int:
        """Of the vectors of an encoder that is `hidden` wide."""
        whole = self.whole_width(hidden)
        return whole if self.truncate is None else min(whole, self.truncate)

    def whole_width(self, hidden: int) -> int:
        """The same before they are cut."""
        return int(self.denses[-1].weight.shape[0]) if self.denses else hidden


@dataclass(frozen=True)
class Module:
    """A row of modules.json. kind: its class, without the name of the package.  path: its folder, "" for the
    encoder."""

    kind: str
    path: str
    fields: Fields


def read_parts(folder: Path, hidden: int, prompt_name: str | None = None) -> SentenceParts:
    """What a folder says. prompt_name: of the prompt before each text; None: the default one. Raises UserError for a
    module that is not computed here, for one that does not fit, and for a prompt that the folder does not have."""
    listed = folder / MODULES
    if not listed.is_file():
        return SentenceParts(prompt=read_prompt(folder, prompt_name)) if prompt_name else SentenceParts()
    pooling: Pooling | None = None
    whole, static = True, False
    denses: list[Dense] = []
    normalize = False
    for module in list_modules(listed):
        kind, where = module.kind, folder / module.path
        if kind == "Transformer":
            if where != folder:
                raise module.fields.wrong("path", "an empty path: the encoder in the folder itself")
        elif kind == STATIC:
            if where != folder:
                raise module.fields.wrong("path", "an empty path: the word table in the folder itself")
            pooling, static = "mean", True
        elif kind == "Pooling":
            pooling, whole = _pooling(where / _CONFIG, hidden)
        elif kind == "Dense" and not normalize:
            denses.append(_dense(where, int(denses[-1].weight.shape[0]) if denses else hidden))
        elif kind == "Normalize":
            if (where / _CONFIG).is_file():
                _require_vectors(_fields(where / _CONFIG))
            normalize = True
        else:
            raise UserError(
                f"module {printable(kind) or 'without a type'} is not supported", where=str(listed),
                why="supported: Transformer, Pooling or StaticEmbedding, Dense and, last, Normalize",
            )  # fmt: skip
    if pooling is None:
        raise UserError("no Pooling module", where=str(listed), do="add a Pooling module")
    settings = settings_file(folder)
    lowercase = settings is not None and _fields(settings).flag("do_lower_case", False)
    prompt = read_prompt(folder, prompt_name)
    if prompt and not whole:
        name = "default prompt" if prompt_name is None else f"prompt '{prompt_name}'"
        raise UserError(
            f"a {name} that is left out of the pooling is not supported", where=str(listed),
            why="include_prompt is false",
            do=f"set default_prompt_name to null in {PROMPTS}" if prompt_name is None else None,
        )  # fmt: skip
    return SentenceParts(
        pooling, tuple(denses), normalize, read_max_length(folder), lowercase, prompt, whole, static,
        read_truncation(folder),
    )  # fmt: skip


def read_prompt(folder: Path, name: str | None = None) -> str:
    """The prompt of this name, as a folder has it; None: the one that `default_prompt_name` names, "" where it names
    none. Raises UserError for a name without one."""
    file = folder / PROMPTS
    fields = _fields(file) if file.is_file() else Fields({}, str(file))
    prompts = fields.values.get("prompts") or {}
    if name is not None and (not isinstance(prompts, dict) or name not in prompts):
        known = map(str, prompts) if isinstance(prompts, dict) else ()
        do = did_you_mean(name, known)
        raise UserError(f"the model has no prompt '{printable(name, 40)}'", where=str(folder), do=do)
    name = fields.values.get("default_prompt_name") if name is None else name
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(name, str) or name not in prompts:
        known = ", ".join(map(str, prompts)) if isinstance(prompts, dict) else ""
        raise fields.wrong("default_prompt_name", f"a name in prompts: {printable(known, 80) or 'there are none'}")
    prompt = prompts[name]
    if prompt is not None and not isinstance(prompt, str):
        raise fields.wrong(f"prompts.{name}", "a text")
    return prompt or ""


def read_truncation(folder: Path) -> int | None:
    """To how many numbers sentence-transformers cuts the vectors of a folder; None: it does not."""
    file = folder / PROMPTS
    return _stated(_fields(file), TRUNCATION, MAX_WIDTH) if file.is_file() else None


def read_max_length(folder: Path) -> int | None:
    """Longest text in tokens that a folder with modules.json gives; None where it gives none."""
    file = settings_file(folder) if (folder / MODULES).is_file() else None
    return None if file is None else _stated_length(_fields(file)) or read_tokenizer_length(folder)


def carried_length(files: Mapping[str, bytes]) -> int | None:
    """The same of the settings among files by name; None where these leave it to the tokenizer, as version 6 does."""
    name = next((name for name in (SETTINGS, *OTHER_SETTINGS) if name in files), None)
    return None if name is None else _stated_length(Fields(json.loads(decode(files[name], name)), name))


def read_tokenizer_length(folder: Path) -> int | None:
    """The longest text in tokenizer_config.json, which version 6 goes by; None where that sets no bound."""
    file = folder / "tokenizer_config.json"
    value = safe.read_json(file, 64 << 20).get("model_max_length") if file.is_file() else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_POSITIONS:
        return None
    return int(value)


def settings_file(folder: Path) -> Path | None:
    """The file that gives the longest text, under the first of its names."""
    return next((folder / name for name in (SETTINGS, *OTHER_SETTINGS) if (folder / name).is_file()), None)


def list_modules(file: Path) -> list[Module]:
    """The rows of modules.json. Raises UserError for what is none, and for a path to somewhere else."""
    return parse_modules(safe.read_text(file), str(file))


def parse_modules(text: str, where: str) -> list[Module]:
    """The same of a modules.json that was read. Raises UserError for two Dense modules in one folder: what is written
    of one would be the other's."""
    found = [Module(_kind(_string(row, "type")), _plain(row), row) for row in _rows(text, where)]
    dense: set[str] = set()
    for module in found:
        if module.kind == "Dense" and module.path in dense:
            raise module.fields.wrong("path", "a folder that no other Dense module has")
        dense |= {module.path} if module.kind == "Dense" else set()
    return found


def part_files(parts: SentenceParts, hidden: int) -> dict[str, bytes]:
    """The files of a folder that means these parts, by name; what `read_parts` reads back."""
    names = [*([] if parts.static else ["Pooling"]), *("Dense" for _ in parts.denses)]
    names += ["Normalize"] if parts.normalize else []
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{TYPES}{STATIC if parts.static else 'Transformer'}"}]
    listed += [
        {"idx": i, "name": str(i), "path": f"{i}_{name}", "type": f"{TYPES}{name}"} for i, name in enumerate(names, 1)
    ]
    modes = {mode: name == parts.pooling for name, mode in _MODES.items()}
    whole = {} if parts.pools_prompt else {"include_prompt": False}
    files = {MODULES: _json(listed)}
    if not parts.static:
        files[f"1_Pooling/{_CONFIG}"] = _json({WIDTH: hidden, **modes, **whole})
    for number, dense in enumerate(parts.denses, 1 if parts.static else 2):
        activation = next(name for name, tanh in _ACTIVATIONS.items() if tanh == dense.tanh)
        out, given = map(int, dense.weight.shape)
        values = {"in_features": given, "out_features": out, "bias": dense.bias is not None}
        tensors = {"linear.weight": dense.weight.contiguous()}
        if dense.bias is not None:
            tensors["linear.bias"] = dense.bias.contiguous()
        files[f"{number}_Dense/{_CONFIG}"] = _json({**values, "activation_function": activation})
        files[f"{number}_Dense/{_WEIGHTS}"] = b"".join(encode(tensors, {"format": "pt"})[1])
    if parts.max_length is not None or parts.lowercase:
        files[SETTINGS] = _json({MAX_LENGTH: parts.max_length, "do_lower_case": parts.lowercase})
    return files


def _kind(name: str) -> str:
    """A class of sentence-transformers without the names of its packages; another one with them."""
    package, _, kind = name.rpartition(".")
    return kind if f"{package}.".startswith(PACKAGE) else name


def _rows(text: str, where: str) -> list[Fields]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("not JSON", where=where, why=printable(str(error), 100)) from error
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise UserError("not a list of modules", where=where)
    return [Fields(row, f"{where}[{number}]") for number, row in enumerate(listed)]


def _plain(module: Fields) -> str:
    """Where a module lies: a folder right below, and never elsewhere on this machine."""
    path = _string(module, "path")
    if path == "." and _kind(_string(module, "type")) == STATIC:  # as model2vec writes it
        return ""
    if path in (".", "..") or set(path) & set("/\\:\0"):
        raise module.wrong("path", "the name of a folder beside modules.json")
    return path


def _pooling(file: Path, hidden: int) -> tuple[Pooling, bool]:
    """How tokens are pooled, and whether the tokens of a prompt are: of version 6's files, and of older ones."""
    fields = _fields(file)
    key = NEW_WIDTH if NEW_WIDTH in fields.values else WIDTH
    width = fields.integer(key, most=MAX_WIDTH, default=hidden)
    if width != hidden:
        raise fields.wrong(key, f"{hidden}, the width of the encoder")
    whole = fields.flag("include_prompt", True)
    if "pooling_mode" in fields.values:
        named = fields.values["pooling_mode"]
        asked = sorted(map(str, named)) if isinstance(named, list) else [str(named)]
        known: dict[Pooling, str] = {name: name for name in _MODES}
    else:
        asked = sorted(n for n, value in fields.values.items() if n.startswith("pooling_mode_") and value is True)
        known = dict(_MODES)
    for name, mode in known.items():
        if asked == [mode]:
            return name, whole
    raise UserError(
        "this pooling is not supported", where=str(file), why=f"found {printable(', '.join(asked), 100) or 'none'}",
        do=f"use one of {', '.join(known.values())}",
    )  # fmt: skip


def _require_vectors(fields: Fields) -> None:
    """Raise UserError for a module of version 6 that reads or writes something else than the vector of a text."""
    for key in ("module_input_name", "module_output_name"):
        if fields.values.get(key) not in (None, VECTOR):
            raise fields.wrong(key, VECTOR)
    if fields.flag("use_residual", False):
        raise fields.wrong("use_residual", "false: a module with a residual is not supported")


def _dense(folder: Path, given: int) -> Dense:
    fields = _fields(folder / _CONFIG)
    _require_vectors(fields)
    out = fields.integer("out_features", most=MAX_WIDTH)
    if fields.integer("in_features", most=MAX_WIDTH) != given:
        raise fields.wrong("in_features", f"{given}, the output width of the previous module")
    name = _string(fields, "activation_function")
    if name not in _ACTIVATIONS:
        raise fields.wrong("activation_function", " or ".join(_ACTIVATIONS))
    shapes = {"linear.weight": (out, given)} | ({"linear.bias": (out,)} if fields.flag("bias", True) else {})
    file = folder / _WEIGHTS
    tensors = safe.load_safetensors(file)
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != shapes:
        raise UserError("the tensors do not match config.json", where=str(file), why=f"{found}, not {shapes}")
    safe.require_finite(tensors, str(file))
    return Dense(tensors["linear.weight"].float(), _float(tensors.get("linear.bias")), _ACTIVATIONS[name])


def _string(fields: Fields, name: str) -> str:
    value = fields.values.get(name, "")
    if not isinstance(value, str):
        raise fields.wrong(name, "a string")
    return value


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _fields(file: Path) -> Fields:
    return Fields(safe.read_json(file), str(file))


def _stated_length(settings: Fields) -> int | None:
    return _stated(settings, MAX_LENGTH, MAX_POSITIONS)


def _stated(fields: Fields, name: str, most: int) -> int | None:
    """None: absent or null."""
    return None if fields.values.get(name) is None else fields.integer(name, most=most)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
