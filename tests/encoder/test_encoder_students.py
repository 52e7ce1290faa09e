"""Students cut out of a teacher: copies, never the same tensors; every bad layer map told with the legal range."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model

from compress.contracts import Needs
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError


def test_copies_the_chosen_layers_and_everything_around_them() -> None:
    teacher = model(UNIFORM)
    student = take_layers(teacher, [0, 2])
    theirs = teacher.state_dict()
    assert student.config.depth == 2
    for name, tensor in student.state_dict().items():
        source = name.replace("encoder.layers.1.", "encoder.layers.2.")
        assert torch.equal(tensor, theirs[source])
        assert tensor.data_ptr() != theirs[source].data_ptr()
    assert set(student.head_configs) == {"mlm", "task", "pair"}
    before = {name: tensor.clone() for name, tensor in theirs.items()}
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_all_layers_is_the_teacher() -> None:
    for name, config in VARIATIONS.items():
        teacher, b = model(config), batch([5, 3, 3], config)
        student = take_layers(teacher, [0, 1, 2])
        assert student.config == teacher.config, name
        assert torch.equal(student(b, Needs(logits=True)).logits, teacher(b, Needs(logits=True)).logits)  # pyright: ignore


def test_uneven_and_shared_layers_keep_their_nature() -> None:
    uneven = take_layers(model(VARIATIONS["uneven"]), [1, 2])
    assert uneven.config.layers == VARIATIONS["uneven"].layers[1:]
    uneven(batch([4, 2]))
    shared = take_layers(model(VARIATIONS["shared"]), [1, 2])  # groups 1 and 0
    assert shared.config.layer_groups is None
    still = take_layers(model(VARIATIONS["shared"]), [0, 2])  # both of group 0
    assert still.config.layer_groups == (0, 0)
    assert len(still.encoder.layers) == 1


def test_folded_segments_embed_as_the_teacher() -> None:
    teacher = model(UNIFORM).double()
    b = batch([7, 2])
    b.segment_ids.zero_()
    folded = take_layers(teacher, [0, 1, 2], heads=["mlm"], segments="fold", pooler=False)
    assert folded.config.segments == 0
    assert folded.config.pooler is False
    torch.testing.assert_close(folded(b).last_hidden, teacher(b).last_hidden, rtol=1e-12, atol=1e-12)
    dropped = take_layers(teacher, [0, 1, 2], heads=["mlm"], segments="drop", pooler=False)
    table = dropped.encoder.embeddings.position.weight
    assert torch.equal(table, teacher.encoder.embeddings.position.weight)
    assert not torch.allclose(dropped(b).last_hidden, teacher(b).last_hidden)


def test_a_frozen_teacher_gives_a_student_that_trains() -> None:
    teacher = model(UNIFORM).requires_grad_(False)
    student = take_layers(teacher, [1]).train()
    assert all(parameter.requires_grad for parameter in student.parameters())
    student(batch([3]), Needs(logits=True)).logits.sum().backward()  # pyright: ignore


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([0, 3], "layers: layer 3 does not exist: allowed: 0..2"),
        ([-1, 2], "layers: layer -1 does not exist: allowed: 0..2"),
        ([0, "1"], "layers: layer '1' does not exist: allowed: 0..2"),
        ([0, 2, 2], "layers: layer 2 is listed twice: allowed: 0..2; use [0, 2]"),
        ([2, 0], "layers: layers [2, 0] are out of order: allowed: 0..2; use [0, 2]"),
        ([], "layers: no layer is kept: allowed: 0..2"),
    ],
)
def test_bad_layer_maps(keep: Sequence[int], message: str) -> None:
    with pytest.raises(UserError) as caught:
        take_layers(model(UNIFORM), keep)
    assert str(caught.value) == message


def test_other_refusals() -> None:
    with pytest.raises(UserError, match=r"^heads: the model has no 'taks' head; did you mean 'task'\?$"):
        take_layers(model(UNIFORM), [0], heads=["taks"])
    with pytest.raises(UserError, match="the classification head needs the pooler, and this encoder has none"):
        take_layers(model(UNIFORM), [0], pooler=False)
    with pytest.raises(
        UserError, match=r"^segments: the segment embedding cannot be folded into fixed positions; use keep or drop$"
    ):
        take_layers(model(VARIATIONS["sinusoidal"]), [0], segments="fold")
