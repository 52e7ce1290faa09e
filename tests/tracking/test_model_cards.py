"""The model card as the description of a model's page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracking_tools import Opener, Seen

from compress.tracking.models import NOTE, read_card


def _folder(place: Path, card: str) -> Path:
    place.mkdir(parents=True)
    (place / "README.md").write_text(card)
    (place / "config.json").write_text("{}")
    return place


def test_the_header_of_model_hubs_and_the_title_are_left_out(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "---\nlicense: mit\n---\n\n# model\n\nAn encoder.\n")
    assert read_card(folder, 100) == "An encoder."
    assert read_card(_folder(tmp_path / "b", "## Limits\n\nNone.\n"), 100) == "## Limits\n\nNone."
    assert read_card(tmp_path, 100) == ""


def test_a_long_card_ends_with_a_paragraph(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "one\n\n" + "two " * 20 + "\n\n" + "three " * 40)
    found = read_card(folder, 200)
    assert len(found) <= 200
    assert found.startswith("one\n\ntwo")
    assert "three" not in found
    assert found.endswith("The rest is in README.md, among the model's artifacts.")


@pytest.mark.parametrize("registered", [False, True])
def test_a_logged_model_and_its_version_have_the_card(
    opened: Opener, seen: Seen, tmp_path: Path, registered: bool
) -> None:
    run = opened("one")
    key = run.model(_folder(tmp_path / "one" / "model", "# small\n\nAn encoder."), name="small", model_type="distill")
    if registered:
        run.register(key, "toy")
    run.finish()
    experiment = seen.client.get_experiment_by_name("toy")
    assert experiment is not None
    (model,) = seen.client.search_logged_models([experiment.experiment_id])
    assert model.tags[NOTE] == "An encoder."
    versions = seen.client.search_model_versions("name = 'toy'")
    assert [v.description for v in versions] == ["An encoder."] * registered
