"""A file is tried in every runtime that is installed, and the lines about it say how it answers in each."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_onnx_encoder as floats
import test_onnx_integers as files

from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model
from compress.onnx import writer as writing
from compress.onnx.check import Check, ReferenceOutputs
from compress.onnx.writer import WrittenFile, write

GOOD = Check(256, "x/validation", 1e-6, 1e-7, 3.0, 1.0)
NOTHING = ReferenceOutputs([], [], "x/validation")
BAD = Check(256, "x/validation", 0.5, 0.1, 3.0, 0.9)


def test_lines() -> None:
    broken = UserError("openvino cannot load this file", why="no such operator")
    assert WrittenFile(b"", {}, GOOD, NOTHING).findings == [GOOD.sentence()]
    assert WrittenFile(b"", {}, GOOD, NOTHING, {"openvino": GOOD}).findings[1] == (
        "in openvino: largest difference 1.0e-06, agreement 100.0 %"
    )
    assert WrittenFile(b"", {}, GOOD, NOTHING, {"openvino": BAD}).findings[1] == (
        "the file does not match the model in openvino: its outputs differ from the model's by 5.0e-01, allowed: at "
        "most 3.0e-04; do not serve it with openvino"
    )
    assert WrittenFile(b"", {}, GOOD, NOTHING, {"openvino": broken}).findings[1] == (
        "openvino cannot load this file: no such operator"
    )


@pytest.mark.thorough
@floats.MISSING
@pytest.mark.parametrize("fails", [False, True])
def test_a_quantized_file_is_tried_in_openvino(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path / "model", files.quantized("bert", "classification", "static"), tokenizer_files={})
    if fails:

        def broken(content: bytes) -> None:
            raise UserError("openvino cannot load this file", why="no such operator")

        monkeypatch.setattr(writing, "OpenVinoSession", broken)
    written = write(load_model(folder), "task", [files.packed()], "random tokens")
    (other,) = written.others.values()
    assert isinstance(other, UserError) == fails
    assert list(written.record["checks"]) == ([] if fails else ["openvino"])
    assert written.record["int8_products"] == "exact with and without VNNI"
