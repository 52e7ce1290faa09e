"""Data sets by name from the Hugging Face hub, and the quiet use of the `datasets` library."""

from __future__ import annotations

import logging
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compress.errors import ExitCode, UserError, printable

if TYPE_CHECKING:
    from datasets import Dataset

_NAME = re.compile(r"[\w.-]+(/[\w.-]+){0,2}(@[\w./-]+)?")
_DO = "give a local file or folder, or check the name and the network"


@contextmanager
def silence_hub() -> Iterator[None]:
    """Without the bars and log lines of `datasets` and the hub client: what matters becomes an error or a note."""
    import datasets

    bars = datasets.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def read_hub(name: str) -> Mapping[str, Dataset]:
    """split → rows of `name`, `org/name`, `name/config` or `org/name/config`, each with an optional `@revision`.

    Two parts may mean an organisation or a config: the organisation is tried first. No code from the hub is ever run.
    Raises UserError (ENVIRONMENT when the hub cannot be reached).
    """
    where = f"hf:{name}"
    if not _NAME.fullmatch(name):
        raise UserError("not a hub name", where=where, do="write hf:name, hf:org/name or hf:org/name/config")
    repository, _, revision = name.partition("@")
    parts = repository.split("/")
    if len(parts) == 3:
        tries = [("/".join(parts[:2]), parts[2])]
    elif len(parts) == 2:
        tries = [(repository, None), (parts[0], parts[1])]
    else:
        tries = [(repository, None)]
    failure: UserError | None = None
    for repo, config in tries:
        try:
            return _load(repo, config, revision or None, where)
        except _NotThereError as error:
            failure = failure or error
    assert failure is not None
    raise failure


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Where the hub's name cannot even be looked up, go offline at once: what is in the cache is found, and what is
    not fails now and not after half a minute of retries.
    """
    from datasets import config
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        yield
        return
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        held = config.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = False, held
    else:
        yield


class _NotThereError(UserError):
    """The hub answered that it has no such data set."""


def _load(repo: str, config: str | None, revision: str | None, where: str) -> Mapping[str, Dataset]:
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    try:
        with silence_hub(), _offline_if_unreachable():
            made = datasets.load_dataset(repo, config, revision=revision)
    except DatasetNotFoundError as error:
        raise _NotThereError("the hub has no such data set, or it needs a login", where=where, do=_DO) from error
    except (ConnectionError, OSError) as error:
        raise UserError(
            "cannot reach the Hugging Face hub",
            where=where,
            why=printable(str(error).splitlines()[0], 120) if str(error) else None,
            do=_DO,
            code=ExitCode.ENVIRONMENT,
        ) from error
    except Exception as error:  # the library raises many kinds; the cause says what it was about
        cause = error.__cause__ or error
        first = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise UserError("cannot load this data set", where=where, why=printable(first, 200)) from error
    assert isinstance(made, datasets.DatasetDict)
    return {str(split): rows for split, rows in made.items()}
