"""What reaches the store is what the store takes, and never a secret."""

from __future__ import annotations

import math
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compress import registry
from compress.cascade.certificate import METHODS
from compress.tracking import names


@settings(deadline=None)  # the first call imports mlflow
@given(st.text(max_size=400))
def test_a_clean_key_is_one_that_mlflow_takes(text: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    key = names.clean_key(text)
    _validate_metric_name(key)
    assert 0 < len(key) <= MAX_ENTITY_KEY_LENGTH


@pytest.mark.parametrize("key", ["quality/accuracy", "size/params_m", "train/loss", "a b:c-d.e_f"])
def test_our_keys_stay_as_they_are(key: str) -> None:
    assert names.clean_key(key) == key


@pytest.mark.parametrize("name", ["评论", "отзывы", "critiques-été"])
def test_names_of_models_in_any_script_stay_as_they_are(name: str) -> None:
    from mlflow.utils.validation import _validate_logged_model_name, _validate_model_name

    assert names.model_name(name) == name
    _validate_model_name(name)
    _validate_logged_model_name(name)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_six_digits(value: float) -> None:
    got = names.round_figure(value)
    assert got == value or math.isclose(got, value, rel_tol=5e-6)


@pytest.mark.parametrize(("value", "expected"), [(0.91234567, 0.912346), (109_482_240, 109_482_240.0), (1e-7, 1e-7)])
def test_rounding(value: float, expected: float) -> None:
    assert names.round_figure(value) == expected


def test_what_is_not_finite_becomes_a_tag() -> None:
    finite, tags, bad = names.split_metrics({"a": 1.0, "b": math.inf, "c": math.nan, "d": "x"}, 7)  # type: ignore[dict-item]
    assert finite == {"a": 1.0}
    assert tags == {"nonfinite/b": "inf at step 7", "nonfinite/c": "nan at step 7"}
    assert bad == ["d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:canary@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg2://u:canary@db/mlflow", "postgresql+psycopg2://***@db/mlflow"),
        ("compress distill --tracking-uri https://a:canary@h -v", "compress distill --tracking-uri https://***@h -v"),
        ("me@example.org wrote", "me@example.org wrote"),
        ("http://host/a@b", "http://host/a@b"),
        ("at http://me:can@ry/canary@host:5000/x: refused", "at http://***@host:5000/x: refused"),
        ("http://host/x?api_key=canary&step=2", "http://host/x?api_key=***&step=2"),
        ("sqlite:////mnt/a@b/c@d/mlflow.db?mode=ro", "sqlite:////mnt/a@b/c@d/mlflow.db?mode=ro"),
    ],
)
def test_passwords_are_masked(text: str, expected: str) -> None:
    assert names.redact(text) == expected


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:p@ss/canary@host:5000", "http://***@host:5000"),
        ("http://canary/canary@host", "http://***@host"),
        ("postgresql://u:can?ary%2Fcanary@db/mlflow", "postgresql://***@db/mlflow"),
        ("https://host:5000/path?token=canary", "https://host:5000/path?***"),
        ("http://host:5000", "http://host:5000"),
        ("sqlite:////mnt/a@b/mlflow.db?timeout=5", "sqlite:////mnt/a@b/mlflow.db?timeout=5"),
    ],
)
def test_an_address_in_use_is_hidden_in_every_text(uri: str, shown: str) -> None:
    assert names.redact_address(uri) == shown
    names.hide_address(uri)
    said = names.redact(f"cannot connect to {uri} with password {unquote(uri.split('@')[0].split(':')[-1])}")
    assert "canary" not in said
    assert said.startswith(f"cannot connect to {shown}".split("?")[0])


def test_secrets_of_the_environment_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_canary")
    monkeypatch.setenv("SOME_PASSWORD", "")
    assert names.redact("token=hf_canary_canary") == "token=***"
    assert names.text_values({"a": "x hf_canary_canary"}, 100) == {"a": "x ***"}


def test_texts_are_cut_where_the_store_would_cut() -> None:
    cut = names.text_values({"a": "x" * 9000}, names.TAG_LIMIT)["a"]
    assert len(cut) == names.TAG_LIMIT
    assert cut.endswith("…")


@given(st.text(min_size=1, max_size=300))
def test_a_slug_is_a_safe_folder_name(name: str) -> None:
    slug = names.slug(name)
    assert slug
    assert len(slug) <= 90
    assert slug[0] not in ".-"
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in slug)


def test_different_names_have_different_slugs() -> None:
    assert names.slug("a/b") != names.slug("a-b") != names.slug("a b")
    assert names.slug("opinions") == "opinions"


def test_colours_tell_the_teacher_and_the_methods_apart() -> None:
    known = [names.colour(m) for m in ("distill", "share", "prune-layers", "prune-width", "quantize")]
    assert len(set(known)) == len(known)
    assert names.colour("finetune", "teacher") == names.colour("anything", "teacher") == "#1f2937"
    assert names.colour("prune_layers") == names.colour("prune-layers"), "a stage's method is its kind"
    made = [*(kind for kind in registry.stages() if kind not in ("tokenizer", "export")), *METHODS.values(), "fit"]
    assert len({names.colour(method) for method in made}) == len(made), "on one page they are told apart"
    assert names.colour("some-new-method") == names.colour("some-new-method")
