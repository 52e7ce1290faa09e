"""Which errors of a store a second try can cure, and which say no to this very content."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_HELD = "RESOURCE_ALREADY_EXISTS"
_RACE = {"BAD_REQUEST", _HELD}
"""What a second try can cure. BAD_REQUEST is MLflow's answer to every error of its database, also to the second of two
runs that insert the row of one data set at once."""
# What no repetition will cure, or did; anything else is the store's trouble and is tried again.
_REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", *_RACE}
_TRIES = 4
_PAUSE = 0.2  # s before the second try, twice as long before each later one; at random: two runs must not meet again


def is_rejected(error: BaseException) -> bool:
    """True when the store said no to this very content."""
    return getattr(error, "error_code", None) in _REFUSALS


def is_rejected_file(error: BaseException) -> bool:
    """True when the store said no to this very file, or what it belongs to is not in the store any more."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return is_rejected(error) or status in (400, 413)


def retry_races(call: Callable[[], object]) -> None:
    """Calls the store, several times while it gives an answer that a second try can cure. What it holds already was
    sent. Any other error comes through, and the last one."""
    for number in range(_TRIES):
        try:
            call()
            return
        except Exception as error:
            code = getattr(error, "error_code", None)
            if code not in _RACE or number == _TRIES - 1:
                if code == _HELD:
                    return
                raise
        time.sleep(random.uniform(0.5, 1) * _PAUSE * 2**number)


def is_final(error: Exception) -> bool:
    """True when no further try will bring this file to the store."""
    return isinstance(error, FileNotFoundError) or is_rejected_file(error)
