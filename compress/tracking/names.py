"""What a figure, a parameter, a tag may look like in the store, and what must never get there.

MLflow cuts or refuses what is too long and stores infinity as 1.8e308 (which then ranks first), so values are put in
shape here, before they reach the journal: a journal holds only what the store will take.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from compress.errors import printable

KEY_LIMIT = 250
PARAM_LIMIT = 6000
TAG_LIMIT = 8000
DIGEST_LIMIT = 36
DATASET_NAME_LIMIT = 500
SOURCE_LIMIT = 60_000
SOURCE_STORED = 65_535  # what the store takes; we cut earlier
EXPERIMENT_LIMIT = 500
VIEW_LIMIT = 20_000  # of a tag of an experiment
INPUT_KEY_LIMIT, INPUT_VALUE_LIMIT = 255, 500  # of a tag of a data set
NONFINITE = "nonfinite/"
MEASURED = "measured."
"""Begin of the tags that say what a run's figures were measured on."""

# Runs are told apart by colour only: the teacher dark, controls grey, each method its own.
_COLOURS = {
    "teacher": "#1f2937",
    "control": "#9ca3af",
    "distill": "#2563eb",
    "finetune": "#0891b2",
    "pretrain": "#7c3aed",
    "share": "#d97706",
    "albert": "#d97706",
    "chain": "#9333ea",
    "prune-layers": "#dc2626",
    "prune": "#dc2626",
    "prune-vocab": "#ea580c",
    "prune-width": "#db2777",
    "factorize": "#0d9488",
    "sparsify": "#854d0e",
    "quantize": "#16a34a",
    "drop-tokens": "#be123c",
    "make-static": "#475569",
    "reduce-dimensions": "#0369a1",
    "fit": "#65a30d",
    "cascade": "#c026d3",
    "early-exit": "#4f46e5",
}
_SPARE = ("#86198f", "#15803d", "#a16207", "#1d4ed8")

_BAD_KEY = re.compile(r"[^/\w.\- :]")  # letters of any script, as MLflow has it
_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:[^/\s:@]+:[^\s'\"]*@|[^/\s@]*@)")
_PARAMETER = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:token|passw|secret|key|sig|credential|auth)[^=&\s]*=)[^&\s'\"]+", re.I
)
_LOCAL = ("sqlite", "file")
"""Schemes of addresses that are paths: an @ in them is part of a name."""
_LEAST = 4  # characters of what is taken out of every text: shorter words occur by chance
_SECRET_VARIABLES = re.compile(r"(TOKEN|PASSWORD|SECRET|ACCESS_KEY|API_KEY|CREDENTIAL)", re.IGNORECASE)


def colour(method: str, role: str = "student") -> str:
    """`#rrggbb` of a run; the same method always has the same one."""
    for name in (role, method.replace("_", "-")):  # of a stage it is its kind
        if name in _COLOURS:
            return _COLOURS[name]
    return _SPARE[zlib.crc32(method.encode()) % len(_SPARE)]


def clean_key(key: str) -> str:
    """`key` as the store takes it: letters of any script, digits, space and `_ - . : /`, no `..` or `//`, cut."""
    text = _BAD_KEY.sub("_", str(key))
    parts = [p for p in text.split("/") if p not in ("", ".", "..")]
    return "/".join(parts)[:KEY_LIMIT] or "unnamed"


def model_name(name: str) -> str:
    """MLflow allows no `/ : . % " '` in the name of a model."""
    return "".join("-" if c in "/:.%\"'" else c for c in printable(clean_key(name), 200))


def truncate_text(text: str, limit: int) -> str:
    """`text`, cut to `limit` characters with an ellipsis that shows it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def round_figure(value: float) -> float:
    """Six significant digits, whole numbers exact: the table prints every digit it is given."""
    if value == int(value) and abs(value) < 2**53:
        return float(value)
    return float(f"{value:.6g}")


def name_conditions(context: Mapping[str, str]) -> dict[str, str]:
    """The tags of what was measured under which conditions. context: that of a `contracts.Measurement`."""
    return {f"{MEASURED}{key}": value for key, value in context.items()}


def split_metrics(values: Mapping[str, float], step: int | None) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """(metrics, tags, names of what is no number): infinities and NaN become tags `nonfinite/<key>`."""
    finite: dict[str, float] = {}
    tags: dict[str, str] = {}
    bad: list[str] = []
    for key, raw in values.items():
        name = clean_key(key)
        try:
            value = float(raw)
        except (TypeError, ValueError, OverflowError):
            bad.append(name)
            continue
        if math.isfinite(value):
            finite[name] = round_figure(value)
        else:
            tags[NONFINITE + name] = str(value) if step is None else f"{value} at step {step}"
    return finite, tags, bad


_of_addresses: set[str] = set()


def redact_address(uri: str) -> str:
    """The address of a store without user, password and query. A password may itself hold `@` and `/`."""
    scheme, mark, rest = uri.partition("://")
    if not mark or scheme.split("+", 1)[0].lower() in _LOCAL:
        return uri
    _, at, place = rest.rpartition("@")
    where, query, _ = place.partition("?")
    return f"{scheme}://{'***@' if at else ''}{where}{'?***' if query else ''}"


def hide_address(uri: str) -> None:
    """From now on `redact` takes user, password and query of this address out of every text."""
    _, mark, rest = uri.partition("://")
    if not mark or redact_address(uri) == uri:
        return
    user, _, place = rest.rpartition("@")
    _, _, query = place.partition("?")
    found = {user, user.partition(":")[2], query, *(pair.partition("=")[2] for pair in query.split("&"))}
    found |= {unquote(secret) for secret in found}
    _of_addresses.update(secret for secret in found if len(secret) >= _LEAST)


def secrets() -> list[str]:
    """What must not be written down anywhere, longest first: secret values of the environment, parts of addresses."""
    found = {v for k, v in os.environ.items() if _SECRET_VARIABLES.search(k) and len(v) >= 8}
    return sorted(found | _of_addresses, key=len, reverse=True)


def redact(text: str, hidden: Sequence[str] | None = None) -> str:
    """`text` without user names, passwords and tokens of addresses and without secrets of the environment."""
    for secret in secrets() if hidden is None else hidden:
        text = text.replace(secret, "***")
    text = _CREDENTIALS.sub(_without_user, text)
    return _PARAMETER.sub(lambda m: m["name"] + "***", text)


def _without_user(found: re.Match[str]) -> str:
    scheme = found["scheme"]
    return found[0] if scheme.split(":")[0].split("+")[0].lower() in _LOCAL else scheme + "***@"


def text_values(values: Mapping[str, Any], limit: int) -> dict[str, str]:
    """Parameters or tags as the store takes them: clean keys, no secrets, not too long."""
    hidden = secrets()
    return {clean_key(k): truncate_text(redact(_as_text(v), hidden), limit) for k, v in values.items()}


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def slug(name: str) -> str:
    """`name` as a folder name: nothing that a file system, a shell or an address could misread."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80]
    if clean == name:
        return clean
    return f"{clean or 'x'}-{zlib.crc32(name.encode()):08x}"
