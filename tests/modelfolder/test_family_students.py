"""Students cut from every family: the kept layers compute what they did, and the folder stays the family's where its
config has words for the student."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import family_cases as cases
import pytest
import torch
from family_cases import CASES, compare, stock_load

from compress.contracts import Needs
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.modelfolder.folder import inspect, load_model, save_model

NAME = "ForSequenceClassification"


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("keep", [[0, 2], [0], [1, 2]], ids=str)
def test_a_cut_student_is_a_stock_folder_of_its_family(
    family: str, keep: list[int], hf: ModuleType, tmp_path: Path
) -> None:
    cases.stock(hf, family, CASES[family].classes + NAME, tmp_path / "stock")
    teacher = load_model(tmp_path / "stock")
    student = take_layers(teacher.model, keep).eval()
    folder = save_model(tmp_path / "student", student, tokenizer_files={}, meta=teacher.meta)
    info = inspect(folder)
    assert info.config.depth == len(keep)
    assert info.parameters == sum(p.numel() for p in student.parameters())
    if family == "modernbert" and keep[0] > 0:
        # ModernBERT's first layer has no norm before its attention, and the student's has one.
        assert (info.family, info.stock_class) == (family, None)
        assert (
            "**transformers cannot load this folder**: its first layer normalises before its attention"
            in (folder / "README.md").read_text()
        )
    else:
        assert (info.family, info.stock_class) == (family, CASES[family].classes + NAME)
        if family == "modernbert" and len(keep) == 1:
            cases.require_layers_of_one_kind(hf)
        compare(family, student, stock_load(hf, CASES[family].classes + NAME, folder), {"task"})


@pytest.mark.parametrize("family", CASES)
def test_a_students_first_layers_see_what_the_teachers_did(family: str, hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, family, CASES[family].classes + NAME, tmp_path)
    teacher = load_model(tmp_path).model
    student = take_layers(teacher, [0, 1]).eval()
    batch = cases.packed(cases.padded_inputs(teacher.config.pad_id))
    with torch.no_grad():
        full, cut = (model(batch, Needs(hidden_states=True)).hidden_states for model in (teacher, student))
    assert full is not None
    assert cut is not None
    for ours, theirs in zip(cut[:2], full[:2], strict=True):
        assert torch.equal(ours, theirs)
    if teacher.config.norm == "post":
        assert torch.equal(cut[2], full[2])


def test_albert_students_go_fewer_times_through_the_same_parameters(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "albert", "AlbertForMaskedLM", tmp_path / "stock", num_hidden_groups=1, inner_group_num=1)
    teacher = load_model(tmp_path / "stock")
    student = take_layers(teacher.model, [0, 2])
    assert len(student.encoder.layers) == 1
    assert student.config.count_parameters() == teacher.config.count_parameters()
    folder = save_model(tmp_path / "student", student, tokenizer_files={}, meta=teacher.meta)
    assert (inspect(folder).stock_class, inspect(folder).config.depth) == ("AlbertForMaskedLM", 2)


def test_rotary_positions_cannot_take_up_a_segment_row(hf: ModuleType, tmp_path: Path) -> None:
    cases.stock(hf, "bert", "BertModel", tmp_path)
    teacher = load_model(tmp_path).model
    take_layers(teacher, [0], segments="fold")
    rotary = dataclasses.replace(teacher.config, positions="rotary", rotary_bases=(10.0,) * 3)
    with pytest.raises(UserError, match="the segment embedding cannot be folded into fixed positions"):
        take_layers(Model(rotary), [0], segments="fold")
