"""Uploads a model folder to a repository of the Hugging Face Hub: `--push hf:org/name`, `compress push`."""

from __future__ import annotations

import glob
import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from compress import __version__
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError, printable
from compress.modelfolder.names import model_label
from compress.modelfolder.resolve import HUB, PATTERNS

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

_REPLACED = (*PATTERNS, "manifest.json", "onnx/model.onnx", "onnx/model_quantized.onnx")
"""Files that would belong to an earlier model, beside those that are downloaded."""
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"


def parse_repository(text: str) -> str:
    """`org/name` of `hf:org/name`. Raises UserError for anything that cannot be the name of a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    where, name = f"hub repository {printable(text, 120)}", text.removeprefix(HUB)
    if not text.startswith(HUB) or name.count("/") != 1:
        raise UserError("not the name of a hub repository", where=where, do="write hf:org/name")
    if "@" in name:
        raise UserError("models are pushed to the main branch", where=where, do=f"write {name.partition('@')[0]!r}")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError("not the name of a hub repository", where=where, why=_said(error)) from None
    return name


@dataclass(frozen=True)
class Pushed:
    """What a push left on the hub. commit: id of the commit that holds the folder.  files, bytes: of the folder."""

    repository: str
    url: str
    commit: str
    files: int
    bytes: int


@dataclass(frozen=True)
class HubRepository:
    """A repository for models on the hub. name: `org/name`.  private: only those who may read it see it; False: as the
    hub's own setting says, if the repository is made by the push."""

    name: str
    private: bool = False

    @classmethod
    def requested(cls, options: RunOptions) -> HubRepository | None:
        """The one that `--push` names, checked; None without the flag, and in a dry run."""
        if options.push is None or options.dry_run:
            return None
        found = cls(options.push, options.push_private)
        found.check()
        return found

    def check(self) -> None:
        """Raise UserError where a push would fail, as far as can be known before there is a model; changes nothing.

        Without a token, with one that the hub does not accept or that may not write here, with no connection, and for a
        private push to a repository that is public.
        """
        self._ask(self._check, "the model cannot be pushed", "remove --push and push the model later")

    def push(self, folder: Path, console: Console, message: str | None = None) -> Pushed:
        """Upload the folder as one commit; the repository is made where there is none.

        Its README.md is the page of the model. Files that a model folder consists of and this one has not are removed
        from the repository, so that no weights of an earlier model stay beside new ones; all other files stay.
        message: of the commit.  Raises UserError, and Stopped on an interrupt; the folder is never changed.
        """
        files = list_files(folder)
        size = sum((folder / name).stat().st_size for name in files)
        later = f"the model is in {folder}; push it with: {self.command(folder)}"
        console.note(f"pushing {folder} to {HUB}{self.name}: {len(files)} files, {size / 1e6:.1f} MB")

        def upload(api: HfApi) -> Pushed:
            self._check(api)
            url = api.create_repo(self.name, private=self.private or None, exist_ok=True)
            commit = api.upload_folder(
                repo_id=self.name,
                folder_path=folder,
                commit_message=message or f"Push {model_label(folder)} with compress {__version__}",
                allow_patterns=[glob.escape(name) for name in files],
                delete_patterns=[*_REPLACED],
            )
            return Pushed(self.name, str(url), commit.oid, len(files), size)

        try:
            with _quiet_client(show_bars=not console.quiet and sys.stderr.isatty()):
                pushed = self._ask(upload, "the model was not pushed", later)
        except KeyboardInterrupt:
            raise Stopped("the model was not pushed: interrupted", self.command(folder)) from None
        console.result(f"pushed   {pushed.url}")
        return pushed

    def command(self, folder: Path) -> str:
        """What is typed to push the folder."""
        words = ["compress", "push", str(folder), f"{HUB}{self.name}", *(["--private"] if self.private else [])]
        return shlex.join(words)

    def _check(self, api: HfApi) -> None:
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            api.auth_check(self.name, write=True)
        except RepositoryNotFoundError:
            return
        if self.private and not api.model_info(self.name).private:
            raise UserError(
                "the repository is public",
                where=f"{HUB}{self.name}",
                do="name another one, make it private on the hub, or push without the flag for a private one",
                code=ExitCode.REFUSED,
            )

    def _ask(self, act: Callable[[HfApi], T], failed: str, do: str) -> T:
        """What `act` returns, given a client with the user's token; its errors as one line. do: the last part of it."""
        from huggingface_hub import HfApi, get_token

        where, token = f"{HUB}{self.name}", get_token()
        if token is None:
            raise UserError(
                failed, where=where, why="there is no token of the hub", do=f"{LOG_IN}; {do}", code=ExitCode.ENVIRONMENT
            )
        try:
            return act(HfApi(library_name="compress-bert", library_version=__version__))
        except UserError:
            raise
        except Exception as error:  # the client lets errors of its network and upload libraries through
            _explain(error, failed, where, do, token)


def push_and_print(
    console: Console, document: Mapping[str, Any], folder: Path | None, repository: HubRepository | None
) -> None:
    """The end of a command that made a model: push it where that was requested, then print the document, with
    `pushed`. The document is printed, too, when the push fails, since the model is there."""
    pushed: dict[str, Any] = {}
    try:
        if repository is not None and folder is not None:
            pushed = {"pushed": vars(repository.push(folder, console))}
    finally:
        console.document({**document, **pushed})


def list_files(folder: Path) -> list[str]:
    """The files of a model folder by their paths in it, without hidden ones."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]


def _explain(error: Exception, failed: str, where: str, do: str, token: str) -> NoReturn:
    """Raise the UserError for what the client raised."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    cause = _known_cause(error)
    said = _said(cause, token)
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
    code = ExitCode.ENVIRONMENT
    if isinstance(cause, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    elif status == 401:
        why, do = "the hub does not accept the token", f"{LOG_IN}; {do}"
    elif status == 403:
        why, do, code = f"the token may not write there: {said}", f"{LOG_IN}; {do}", ExitCode.REFUSED
    elif status is not None:
        why = f"the hub answered: {said}"
    elif _is_network(cause):
        why = f"the hub cannot be reached: {said}"
    else:
        why = said
    raise UserError(failed, where=where, why=why, do=do, code=code) from error


def _known_cause(error: BaseException) -> BaseException:
    """The error, or what caused it where that says more: the client wraps errors of its uploads in a RuntimeError. A
    ValueError says itself what is wrong, such as the head of a README.md."""
    from huggingface_hub.errors import HfHubHTTPError

    found: BaseException | None = None if isinstance(error, ValueError) else error
    while found is not None:
        if isinstance(found, HfHubHTTPError) or _is_network(found):
            return found
        found = found.__cause__
    return error


def _is_network(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.startswith("httpx")


def _said(error: BaseException, token: str | None = None) -> str:
    """What the error says on one line, without the client's advice, the token and the ids of requests."""
    from huggingface_hub.errors import HfHubHTTPError

    text = str(error).strip() or type(error).__name__
    if isinstance(error, HfHubHTTPError):
        text = error.server_message or text.splitlines()[0]
    text = " ".join(text.split())
    return printable(text.replace(token, "…") if token else text, 200).rstrip(".")


@contextmanager
def _quiet_client(*, show_bars: bool) -> Iterator[None]:
    """Without the client's log lines and warnings, and with its progress only where somebody sees it."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    level, hidden = logger.level, are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if not show_bars:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if not show_bars and not hidden:
            enable_progress_bars()
