"""`compress convert`: a checkpoint whose weights are pickled, written anew with safetensors.

Reading a pickle can run code. `torch.load(weights_only=True)` allows only tensors, and it runs in a child process with
limits on memory, time and written bytes, without the network. Nothing else calls this.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError, printable
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.meta import is_cascade
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import resolve
from compress.run.folder import new_output
from compress.storage import atomic, limited_child, safe
from compress.storage.disk import human_bytes

PICKLE, INDEX, WEIGHTS = "pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors"
MOST_BYTES = 16 << 30
"""Of the pickled files of a folder together."""
MEMORY = 1 << 30
"""Bytes that the child may take beside four times the size of the files."""
SECONDS, BYTES_PER_SECOND = 120, 20_000_000
_SLOW = 10  # wall-clock seconds for one of processor time
_COPIED = (".json", ".txt", ".md", ".model", ".safetensors")
_LEFT = ("manifest.json", "compress.json", INDEX)
_COPY_LIMIT = 1 << 30
_CHILD = f"""
try:
    import io, safetensors.torch, torch
except ImportError as error:
    print(error)
    sys.exit({limited_child.NO_LIBRARY})
torch.set_num_threads(1)
warm = io.BytesIO()  # reading it imports all that torch reads with, before imports are over
torch.save({{"a": torch.zeros(1)}}, warm)
warm.seek(0)
torch.load(warm, weights_only=True, map_location="cpu")
limit_memory(1)
sys.addaudithook(refuse)
try:
    found = {{}}
    for path in given["files"]:
        read = torch.load(path, weights_only=True, map_location="cpu")
        for wrapper in ("state_dict", "model_state_dict", "model"):
            if isinstance(read, dict) and isinstance(read.get(wrapper), dict):
                read = read[wrapper]
        if not isinstance(read, dict):
            raise ValueError("it holds no table of tensors, but " + type(read).__name__)
        for name, tensor in read.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ValueError("not a tensor: " + str(name)[:80])
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
                raise ValueError("not an ordinary tensor: " + name[:80])
            if name in found:
                raise ValueError("two files hold the tensor " + name[:80])
            found[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    if not found:
        raise ValueError("it holds no tensors")
    safetensors.torch.save_file(found, given["output"])
except BaseException as error:
    kind = type(error).__name__
    if kind == "UnpicklingError":
        print("it holds more than tensors, or is damaged: reading it could run code")
    elif "memory" in str(error).lower() or kind == "MemoryError":
        print("memory")
    elif isinstance(error, ValueError):
        print(str(error))
    else:
        print("the file is damaged: " + kind)
    sys.exit({limited_child.FAILED})
"""


def convert_folder(name: str, options: RunOptions) -> int:
    """Write `options.output`: the folder called `name` with safetensors for its pickled weights; the original stays as
    it is. Returns the number of tensors.

    Raises UserError for a folder without such weights, and for files that hold more than tensors, are damaged, or take
    more than the limits; then nothing is written.
    """
    console = Console(quiet=options.quiet, json=options.json)
    repository = HubRepository.requested(options)
    folder = resolve(name)
    output = new_output(options)
    found = _pickles(folder)
    size = sum(path.stat().st_size for paths in found.values() for path in paths)
    if size > MOST_BYTES:
        why = f"{human_bytes(size)}, limit {human_bytes(MOST_BYTES)}"
        raise UserError("the pickled files are too large", where=str(folder), why=why, code=ExitCode.RESOURCES)
    count = 0
    with atomic.new_folder(output, needed=2 * size) as temp:
        _copy(folder, temp)
        for place, paths in found.items():
            tensors = _read(paths, folder)
            atomic.write_safetensors(temp / place / WEIGHTS, tensors, {"format": "pt"})
            count += len(tensors)
        made = modelfolder.inspect(temp)  # a folder that no command can read is not written
    console.result(f"wrote {output}: {count:,} tensors, {human_bytes(size)} of pickled files, as {WEIGHTS}")
    for note in made.notes:
        console.note(note)
    document = {"folder": str(output), "tensors": count, "bytes": size}
    push_and_print(console, document, output, repository)
    return count


def _pickles(folder: Path) -> dict[str, list[Path]]:
    """Folder inside the model folder → its pickled weights. Raises UserError where there is nothing to convert."""
    if is_cascade(folder):
        raise UserError(
            "there is nothing to convert", where=str(folder), why="the models of a cascade have no pickled weights"
        )
    if not (folder / "config.json").is_file():
        raise UserError("no config.json: not a model folder", where=str(folder))
    found: dict[str, list[Path]] = {}
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())):
        if (place / WEIGHTS).exists() or (place / f"{WEIGHTS}.index.json").exists():
            continue
        if (place / PICKLE).is_file():
            found[place.relative_to(folder).as_posix()] = [place / PICKLE]
        elif place == folder and (place / INDEX).is_file():
            found["."] = _shards(place)
    if not found:
        why = f"{WEIGHTS} is there" if (folder / WEIGHTS).is_file() else f"looked for {PICKLE} and {INDEX}"
        raise UserError("there is nothing to convert", where=str(folder), why=why)
    return found


def _shards(folder: Path) -> list[Path]:
    rows: Any = safe.read_json(folder / INDEX, 10 << 20).get("weight_map")
    names = sorted({str(row) for row in rows.values()}) if isinstance(rows, dict) else []
    if not names:
        raise UserError("no weight_map from tensor names to files", where=str(folder / INDEX))
    for name in names:
        if Path(name).name != name or not name.endswith(".bin"):
            raise UserError(
                f"invalid file name '{printable(name, 60)}'", where=str(folder / INDEX),
                why="it must be a .bin file in the same folder",
            )  # fmt: skip
        if not (folder / name).is_file():
            raise UserError(f"file '{printable(name, 60)}' of the index is missing", where=str(folder))
    return [folder / name for name in names]


def _copy(folder: Path, target: Path) -> None:
    """Everything that a model folder consists of, apart from its weights."""
    for path in (*folder.iterdir(), *folder.glob("*/*")):
        name = path.relative_to(folder)
        if path.suffix not in _COPIED or path.name in _LEFT or not path.is_file() or path.is_symlink():
            continue
        if any(part.startswith(".") for part in name.parts):
            continue
        (target / name).parent.mkdir(exist_ok=True)
        atomic.write_bytes(target / name, safe.read_bytes(path, _COPY_LIMIT))
    for path in folder.iterdir():  # modules without files, such as Normalize
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            (target / path.name).mkdir()


def _read(paths: list[Path], folder: Path) -> dict[str, Any]:
    """The tensors that a child process read."""
    where = str(paths[0] if len(paths) == 1 else folder / INDEX)
    size = sum(path.stat().st_size for path in paths)
    memory, seconds = 4 * size + MEMORY, SECONDS + size // BYTES_PER_SECOND
    if not sys.executable:
        raise UserError(
            "pickled files cannot be read", where=where, why="no Python to start", code=ExitCode.ENVIRONMENT
        )
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / WEIGHTS
        given = {"files": [str(path.resolve()) for path in paths], "output": str(made)}
        done = limited_child.run(
            _CHILD, given, seconds=seconds, memory=memory, wait=_SLOW * seconds, written=2 * size + (1 << 20)
        )  # fmt: skip
        if done.code == 0:
            return safe.load_safetensors(made)
    if done.code == limited_child.NO_LIBRARY:
        raise UserError(
            "pickled files cannot be read", where=where, why=f"no child process: {done.said}", code=ExitCode.ENVIRONMENT
        )
    why, code = done.said, ExitCode.INPUT
    if done.code is None or done.code in (-signal.SIGXCPU, -signal.SIGKILL):
        why, code = f"it takes more than {seconds} s", ExitCode.RESOURCES
    elif done.said == "memory" or done.code != limited_child.FAILED:
        why, code = f"it fails, or takes more than {human_bytes(memory)}", ExitCode.RESOURCES
    raise UserError("the pickled weights cannot be converted", where=where, why=why, code=code)
