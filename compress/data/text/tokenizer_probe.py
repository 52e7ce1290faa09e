"""Try the steps of a foreign tokenizer.json in a child process that may use little memory and time.

A regular expression that backtracks without end and a damaged table of characters make the library panic, abort or
hang, and no `except` stops an abort. So steps with a pattern or table of their own run here first, on texts that are
bad for them, before they run in this process. What passed is remembered in the cache folder by its content.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from compress.data.text import tokenizer_limits
from compress.errors import ExitCode, UserError
from compress.storage import atomic, limited_child
from compress.storage.cache import private_folder

SECONDS = 10  # of processor time; an honest tokenizer takes a tenth of one
BYTES = 2 << 30
_WAIT = 120  # seconds until a child that does nothing is given up
_VERSION = 1
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_LENGTH = 3000  # characters of a text: a quadratic pattern passes, one that backtracks without end does not
_USUAL = "a0 .\n-\u00e9\u4e2d"
_MOST_LETTERS = 40

_CHILD = f"""
limit_memory()
try:
    import tokenizers
except ImportError as error:
    print(error)
    sys.exit({limited_child.NO_LIBRARY})
sys.addaudithook(refuse)
try:
    made = tokenizers.Tokenizer.from_str(given["pipeline"])
    for text in given["texts"]:
        made.encode(text)
        if made.decoder is not None:
            made.decoder.decode([text])
except BaseException as error:
    print(str(error) or type(error).__name__)
    sys.exit({limited_child.FAILED})
"""


def require_harmless(pipeline: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless the steps of a tokenizer.json handle difficult texts within 2 GiB and 10 s.

    Steps without a pattern or table of their own are not tried: what they do is known.
    """
    parts = {part: pipeline.get(part) for part in _PARTS}
    chain = [step for part in parts.values() for step in tokenizer_limits.steps(part)]
    if all(step.get("type") in tokenizer_limits.PLAIN for step in chain) or not sys.executable:
        return
    known = _record(parts)
    if known is not None and known.is_file():
        return
    _try(parts, chain, where)
    if known is not None:
        with suppress(UserError, OSError):  # a full disk costs the next process a tenth of a second
            atomic.write_text(known, "passed\n")


def _record(parts: Mapping[str, Any]) -> Path | None:
    """The file that stands for a check these steps passed; None where the cache folder cannot be used."""
    import tokenizers

    told = [_VERSION, tokenizers.__version__, parts]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    try:
        return private_folder("tokenizers") / digest
    except (UserError, OSError):
        return None


def _try(parts: Mapping[str, Any], chain: Iterable[Mapping[str, Any]], where: str) -> None:
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}  # the vocabulary has no part in this
    made = {"version": "1.0", "added_tokens": [], **parts, "post_processor": None, "model": model}
    given = {"pipeline": json.dumps(made), "texts": difficult_texts(chain)}
    done = limited_child.run(_CHILD, given, seconds=SECONDS, memory=BYTES, wait=_WAIT)
    if done.code is None:
        raise _rejected(where, f"no result after {_WAIT} s")
    if done.code == 0:
        return
    said = done.said
    if done.code == limited_child.NO_LIBRARY:
        what = "the tokenizer cannot be checked"
        raise UserError(what, where=where, why=f"no child process: {said}", code=ExitCode.ENVIRONMENT)
    if done.code in (-signal.SIGXCPU, -signal.SIGKILL):
        said = f"it takes more than {SECONDS} s"
    elif done.code != limited_child.FAILED:
        said = f"it fails, or takes more than {BYTES >> 30} GiB"
    raise _rejected(where, said)


def _rejected(where: str, why: str) -> UserError:
    return UserError("a step of the tokenizer fails on difficult texts", where=where, why=why)


def difficult_texts(chain: Iterable[Mapping[str, Any]]) -> list[str]:
    """Long repetitions of what the patterns name, and of letters, digits and spaces, each ended by what breaks a match:
    on them, a pattern that can match in many ways tries all."""
    named = "".join(str(text) for step in chain for text in _texts(step.get("pattern")))
    letters = list(dict.fromkeys((*_USUAL, *named)))[:_MOST_LETTERS]
    units = [*letters, "ab", "a ", "a0", "a.", *(word for word in _words(named) if len(word) > 1)]
    return [unit * (_LENGTH // len(unit)) + end for unit in units for end in ("!", "\u0001")]


def _texts(pattern: Any) -> list[Any]:
    return list(pattern.values()) if isinstance(pattern, dict) else []


def _words(pattern: str) -> list[str]:
    """Runs of letters and digits in a pattern."""
    return "".join(c if c.isalnum() else " " for c in pattern).split()[:8]
