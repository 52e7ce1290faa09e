"""Every bad folder is refused in one line that names what is wrong, before anything is built or run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.modelfolder.private import FILE
from compress.storage import safe

WORD = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def tiny(vocabulary: int, heads: list[HeadConfig], **changes: Any) -> Model:
    shape = {"hidden": 32, "layers": 2, "heads": 2, "feed_forward": 48, "max_positions": 32}
    return Model(EncoderConfig.uniform(vocabulary=vocabulary, **shape, **changes), {h.name: h for h in heads})


@pytest.fixture(scope="module")
def good(toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str], tmp_path_factory: Any) -> Path:
    """A good BERT and a good DistilBERT, as if another tool had written them (no manifest, no compress.json)."""
    place = tmp_path_factory.mktemp("good")
    kinds = [HeadConfig("masked_lm"), HeadConfig("classification", labels=3), HeadConfig("sentence_pair")]
    model = tiny(len(toy_vocabulary), kinds)
    meta = FolderMeta(label_names=("bad", "mixed", "good"))
    save_model(place / "bert", model, tokenizer_files=toy_tokenizer_files, meta=meta)
    kinds = [HeadConfig("masked_lm"), HeadConfig("classification", style="distilbert")]
    model = tiny(40, kinds, segments=0, pooler=False)
    save_model(place / "distilbert", model, tokenizer_files={})
    for folder in place.iterdir():
        for name in ("manifest.json", "compress.json", "README.md"):
            (folder / name).unlink()
    return place


@pytest.fixture
def bert(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good / "bert", tmp_path / "model")


@pytest.fixture
def distilbert(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good / "distilbert", tmp_path / "model")


def config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; a key set to `...` is removed."""
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def refused(folder: Path, *parts: str, code: ExitCode = ExitCode.INPUT) -> str:
    """Loading is refused with one line that holds `parts`; nothing appears beside the folder."""
    before = sorted(os.listdir(folder.parent))
    with pytest.raises(UserError) as caught:
        load_model(folder)
    line = str(caught.value)
    for part in parts:
        assert part in line, line
    assert "\n" not in line
    assert line.isprintable()
    assert str(folder) in line
    assert "weights_only=False" not in line
    assert "trust_remote_code" not in line
    assert caught.value.code == code
    assert sorted(os.listdir(folder.parent)) == before
    return line


# --- config.json ------------------------------------------------------------------------------------------------

CONFIGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"model_type": 3}, ["model_type is not a name", "known: albert, bert, "]),
    ({"model_type": "bart"}, ["unknown model_type 'bart'", "known: albert, bert, "]),
    ({"model_type": "gpt2"}, ["unknown model_type 'gpt2'", "known: albert, bert, "]),
    ({"model_type": "bert\x1b[31m\n"}, ["unknown model_type 'bert\\x1b[31m\\n'"]),
    ({"hidden_size": ...}, ["hidden_size is missing", "1..65536"]),
    ({"hidden_size": ..., "hiden_size": 32}, ["hidden_size is missing", "did you mean 'hiden_size'?"]),
    ({"hidden_size": "32"}, ["hidden_size is '32'", "an integer"]),
    ({"hidden_size": True}, ["hidden_size is True", "an integer"]),
    ({"hidden_size": 32.5}, ["hidden_size is 32.5", "an integer"]),
    ({"num_attention_heads": 3}, ["hidden_size 32 is not divisible by num_attention_heads 3", "divides it is 2"]),
    ({"num_attention_heads": 0}, ["num_attention_heads is 0", "allowed: 1..1024"]),
    ({"num_hidden_layers": 0}, ["num_hidden_layers is 0", "allowed: 1..512"]),
    ({"num_hidden_layers": -1}, ["num_hidden_layers is -1", "allowed: 1..512"]),
    ({"vocab_size": 0}, ["vocab_size is 0", "allowed: 1.."]),
    ({"hidden_size": 10**9}, ["hidden_size is 1000000000", "allowed: 1..65536"]),
    ({"num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000", "allowed: 1..512"]),
    ({"max_position_embeddings": 10**12}, ["max_position_embeddings is 1000000000000", "allowed: 1.."]),
    ({"hidden_size": 65536, "num_hidden_layers": 512}, ["parameters", "at most 12,000,000,000"]),
    ({"pad_token_id": 4_000_000}, ["pad_token_id is 4000000", "allowed: 0.."]),
    ({"hidden_act": "gelu_neu"}, ["hidden_act is 'gelu_neu'", "did you mean 'gelu_new'?", "relu"]),
    ({"hidden_act": 3}, ["hidden_act is 3"]),
    ({"layer_norm_eps": 0}, ["layer_norm_eps is 0"]),
    ({"layer_norm_eps": "1e-12"}, ["layer_norm_eps is '1e-12'"]),
    ({"hidden_dropout_prob": 1.5}, ["hidden_dropout_prob is 1.5", "from 0 to below 1"]),
    ({"type_vocab_size": 0}, ["type_vocab_size is 0"]),
    ({"position_embedding_type": "relative_key"}, ["position_embedding_type 'relative_key' is not supported"]),
    ({"is_decoder": True}, ["is_decoder True is not supported", "only encoders are supported"]),
    ({"add_cross_attention": True}, ["add_cross_attention True is not supported"]),
    ({"is_encoder_decoder": True}, ["is_encoder_decoder True is not supported"]),
    ({"chunk_size_feed_forward": 8}, ["chunk_size_feed_forward 8 is not supported", "set it to 0"]),
    ({"pruned_heads": {"0": [1]}}, ["pruned_heads {'0': [1]} is not supported"]),
    ({"quantization_config": {"bits": 4}}, ["quantization_config", "is not supported"]),
    ({"embedding_size": 16}, ["embedding_size 16 is not supported"]),
    ({"architectures": ["BertForMultipleChoice"]}, ["class BertForMultipleChoice is not supported", "BertModel"]),
    ({"architectures": "BertModel"}, ["architectures must be a list"]),
    ({"problem_type": "ranking"}, ["problem_type 'ranking' is not supported", "multi_label_classification"]),
    ({"problem_type": "regression"}, ["a regression with 3 outputs is not supported"]),
    ({"id2label": {"0": "a", "1": "b"}}, ["'classifier", "has shape [3"]),
    ({"id2label": {"0": "a", "1": "b", "7": "c"}}, ["id2label has ids 0, 1, 7", "the classifier's ids are 0..2"]),
    ({"id2label": {"0": "a", "1": "b", "x": "c"}}, ["id2label has the key 'x'"]),
    ({"id2label": {"0": "a", "1": "b", "2": "a"}}, ["id2label has two labels named 'a'"]),
    ({"id2label": ["a", "b", "c"]}, ["id2label must map ids to names"]),
    ({"id2label": {}}, ["the number of labels is 0", "allowed: 1.."]),
    ({"num_labels": 0, "id2label": ...}, ["the number of labels is 0"]),
    ({"label2id": {"bad": 2, "mixed": 1, "good": 0}}, ["label2id is not the inverse of id2label"]),
    ({"num_hidden_layers": 3}, ["16 tensors missing (bert.encoder.layer.2.attention.output.LayerNorm.bias", " …"]),
    ({"num_hidden_layers": 1}, ["16 tensors unexpected (bert.encoder.layer.1", "describes a smaller model"]),
    ({"intermediate_size": 64}, ["'bert.encoder.layer.0.intermediate.dense.", "expected by config.json: [64"]),
    (
        {"max_position_embeddings": 31},
        ["position_embeddings.weight' has shape [32, 32]", "expected by config.json: [31, 32]"],
    ),
]


@pytest.mark.parametrize(("changes", "parts"), CONFIGS, ids=lambda v: "-".join(v)[:50] if isinstance(v, dict) else "")
def test_bad_config(changes: dict[str, Any], parts: list[str], bert: Path) -> None:
    config(bert, **changes)
    refused(bert, *parts)
    with pytest.raises(UserError):
        inspect(bert)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"dim": 33}, ["dim 33 is not divisible by n_heads 2"]),
        ({"n_heads": 5}, ["dim 32 is not divisible by n_heads 5", "the nearest number of heads that divides it is 4"]),
        ({"n_layers": 3}, ["16 tensors missing (distilbert.transformer.layer.2.attention.k_lin.bias"]),
        ({"activation": "mish"}, ["activation is 'mish'"]),
        ({"sinusoidal_pos_embds": "yes"}, ["sinusoidal_pos_embds is 'yes'", "true or false"]),
        ({"architectures": ["DistilBertForMultipleChoice"]}, ["class DistilBertForMultipleChoice"]),
    ],
)
def test_bad_distilbert_config(changes: dict[str, Any], parts: list[str], distilbert: Path) -> None:
    config(distilbert, **changes)
    refused(distilbert, *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["config.json", "empty"]),
        ("{", ["config.json:1:2", "not valid JSON"]),
        ("[1]", ["not a JSON object"]),
        ('{"a": 1, "a": 2}', ["duplicate key 'a'"]),
        ('{"model_type": "bert", "x": NaN}', ["config.json:1:29", "NaN is not a"]),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ["git-lfs pointer", "git lfs pull"]),
    ],
)
def test_broken_config_file(text: str, parts: list[str], bert: Path) -> None:
    (bert / "config.json").write_text(text)
    refused(bert, *parts)


def test_a_huge_label_map_is_refused_by_its_size(bert: Path) -> None:
    config(bert, id2label={"0": "x" * 17 * 2**20}, label2id=...)
    refused(bert, "config.json", "too large")


# --- the tensors ------------------------------------------------------------------------------------------------


def rename(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda state: state.__setitem__(new, state.pop(old))


TENSORS: list[tuple[Callable[[dict[str, torch.Tensor]], Any], list[str], ExitCode]] = [
    (lambda s: s.pop(QUERY), [f"1 tensor missing ({QUERY})"], ExitCode.INPUT),
    (lambda s: s.update(surprise=torch.zeros(2)), ["1 tensor unexpected (surprise)"], ExitCode.INPUT),
    (
        rename(QUERY, "bert.evil\x1b[2J"),
        [f"1 tensor missing ({QUERY}) and 1 tensor unexpected (bert.evil\\x1b[2J)"],
        ExitCode.INPUT,
    ),
    (lambda s: s.pop("classifier.bias"), ["1 tensor missing (classifier.bias)"], ExitCode.INPUT),
    (lambda s: s.pop("bert.pooler.dense.bias"), ["1 tensor missing (bert.pooler.dense.bias)"], ExitCode.INPUT),
    (lambda s: s.update({QUERY: torch.zeros(32, 16)}), [f"'{QUERY}' has shape [32, 16]", "[32, 32]"], ExitCode.INPUT),
    (lambda s: s.update({QUERY: torch.zeros(1024)}), [f"'{QUERY}' has shape [1024]"], ExitCode.INPUT),
    (
        lambda s: s.update({QUERY: torch.zeros(32, 32, dtype=torch.int32)}),
        [f"'{QUERY}' has dtype I32", "supported: F32, F64, F16, BF16"],
        ExitCode.INPUT,
    ),
    (lambda s: s[QUERY].fill_(float("nan")), ["NaN or infinity", QUERY], ExitCode.DATA),
    (lambda s: s[QUERY].view(-1)[3:4].fill_(float("-inf")), ["NaN or infinity", QUERY], ExitCode.DATA),
    (
        lambda s: s.update({QUERY: torch.full((32, 32), 1e300, dtype=torch.float64)}),
        ["NaN or infinity", QUERY],
        ExitCode.DATA,
    ),
    (
        lambda s: s.update({QUERY.removeprefix("bert."): s[QUERY].clone()}),
        ["are the same tensor", QUERY],
        ExitCode.INPUT,
    ),
    (
        lambda s: s.update({"cls.predictions.decoder.weight": s[WORD] + 1}),
        ["'cls.predictions.decoder.weight' differs from", "untied models are not supported"],
        ExitCode.INPUT,
    ),
    (
        lambda s: s.update({"cls.predictions.decoder.bias": s["cls.predictions.bias"] + 1}),
        ["'cls.predictions.decoder.bias' differs from"],
        ExitCode.INPUT,
    ),
]


@pytest.mark.parametrize(("change", "parts", "code"), TENSORS, ids=[str(i) for i in range(len(TENSORS))])
def test_bad_tensors(change: Callable[..., Any], parts: list[str], code: ExitCode, bert: Path) -> None:
    tensors(bert, change)
    refused(bert, *parts, code=code)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _header(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text.encode()) and None


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * 64)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (_truncate, ["truncated safetensors file", "100 of"]),
        (
            lambda p: p.write_bytes(p.read_bytes() + b"x"),
            ["damaged safetensors file", "1 bytes follow the last"],
        ),
        (lambda p: p.write_bytes(b""), ["empty"]),
        (lambda p: p.write_bytes(os.urandom(4) + b"\xff" * 200), ["model.safetensors"]),
        (_header("{}"), ["no tensor"]),
        (lambda p: p.write_bytes(pickle.dumps({"a": 1}, 2)), ["not a safetensors file", "a pickle"]),
        (_zip, ["not a safetensors file", "a zip archive"]),
        (lambda p: p.write_text("<!DOCTYPE html><html>"), ["an HTML page"]),
        (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), ["git lfs pull"]),
    ],
)
def test_broken_weights_file(damage: Callable[[Path], Any], parts: list[str], bert: Path) -> None:
    damage(bert / "model.safetensors")
    if parts == ["no tensor"]:  # a whole file with nothing in it lacks everything
        parts = ["tensors missing (bert.embeddings"]
    refused(bert, *parts)


def test_a_changed_byte_is_noticed_where_a_manifest_is(tiny_model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "ours", tiny_model, tokenizer_files={})
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-2] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    refused(
        folder, "model.safetensors has changed since it was written", "delete manifest.json if the change is intended"
    )
    (folder / "manifest.json").unlink()
    load_model(folder)


# --- what is there, and what is not -------------------------------------------------------------------------------


def test_missing_folder_names_the_nearest(bert: Path) -> None:
    with pytest.raises(UserError, match=r"modle: no such model folder: looked in .*; did you mean '.*/model'\?"):
        load_model(bert.parent / "modle")


def test_a_file_is_not_a_folder(bert: Path) -> None:
    with pytest.raises(
        UserError, match=r"config.json: expected a model folder, found a file; give the folder: .*model"
    ):
        load_model(bert / "config.json")


def test_missing_config_names_the_folder_inside(bert: Path) -> None:
    with pytest.raises(UserError, match=r"no config.json: not a model folder; did you mean '.*/model'\?"):
        load_model(bert.parent)


def test_missing_weights_says_what_was_looked_for(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    refused(bert, "no weights found: looked for model.safetensors and model.safetensors.index.json")


def test_weights_of_another_framework(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "tf_model.h5")
    refused(bert, "no model.safetensors, only tf_model.h5", "safetensors")


class _Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt", "model.pkl", "pytorch_model.pth"])
@pytest.mark.parametrize("forced", [False, True])
def test_pickles_are_never_opened(
    name: str, forced: bool, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    canary = tmp_path / "canary"
    (bert / name).write_bytes(pickle.dumps(_Canary(canary)))
    load_model(bert)  # beside a good file it is ignored
    (bert / "model.safetensors").unlink()
    for place in (bert, bert / name):
        with pytest.raises(
            UserError, match="pickle files are not supported because loading one can run code"
        ) as caught:
            load_model(place)
        assert f"compress convert {bert} --output " in str(caught.value)
    for place in (bert / "model.safetensors", bert / "config.json", bert / "tokenizer.json"):
        place.write_bytes(pickle.dumps(_Canary(canary)))
        with pytest.raises(UserError):
            load_model(bert)
    assert not canary.exists()


def test_code_named_in_a_config_is_not_run(bert: Path) -> None:
    (bert / "modeling_evil.py").write_text("raise SystemExit('ran')\n")
    config(bert, auto_map={"AutoModel": "modeling_evil.EvilModel", "AutoNonsense": "modeling_evil.Evil"})
    assert "config.json refers to custom code (auto_map), which was not run" in load_model(bert).notes


# --- shards -----------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(bert: Path) -> Path:
    state = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    names = sorted(state)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: state[n] for n in names if files[n] == file}, bert / file)
    (bert / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return bert


def index(folder: Path, **changes: Any) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_load(sharded: Path, good: Path) -> None:
    loaded, whole = load_model(sharded).model.state_dict(), load_model(good / "bert").model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (lambda f: index(f, weight_map={}), ["no weight_map"]),
        (lambda f: index(f, weight_map={"a": 1}), ["no weight_map"]),
        (lambda f: index(f, weight_map={"a": "../x.safetensors"}), ["invalid file name '../x.safetensors'"]),
        (
            lambda f: index(f, weight_map={"a": "x.bin"}),
            ["invalid file name 'x.bin'", "safetensors file in the same folder"],
        ),
        (lambda f: index(f, weight_map={"a": "no.safetensors"}), ["file 'no.safetensors'", "is missing"]),
        (
            lambda f: shutil.copy(f / "model-00001-of-00002.safetensors", f / "model-00002-of-00002.safetensors"),
            ["are the same tensor"],
        ),
        (lambda f: _truncate(f / "model-00002-of-00002.safetensors"), ["00002-of-00002", "truncated"]),
    ],
)
def test_broken_shards(break_it: Callable[[Path], Any], parts: list[str], sharded: Path) -> None:
    break_it(sharded)
    refused(sharded, *parts)


# --- anything at all ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FUZZ = settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_whatever_a_config_says_only_a_user_error_leaves(name: str, good: Path, tmp_path: Path, data: Any) -> None:
    folder = shutil.copytree(good / name, tmp_path / "fuzz", dirs_exist_ok=True)
    values = json.loads((good / name / "config.json").read_text())
    extra = ["classifier_dropout", "is_decoder", "pruned_heads", "num_labels", "embedding_size", "auto_map"]
    keys = st.sampled_from([*values, *extra])
    (folder / "config.json").write_text(json.dumps(values | data.draw(st.dictionaries(keys, JSON, min_size=1))))
    with contextlib.suppress(UserError):
        load_model(folder)


@pytest.mark.parametrize("classes", [[[]], [{}], [None], {}, "Bert", [7], []])
def test_classes_that_are_no_names_do_not_tell_the_family(good: Path, tmp_path: Path, classes: object) -> None:
    folder = shutil.copytree(good / "bert", tmp_path / "odd")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in values.items() if k != "model_type"} | {"architectures": classes})
    )
    with contextlib.suppress(UserError):
        assert load_model(folder).family == "bert"


@pytest.mark.parametrize("value", [[[]], [{}], [None, []], {}, "all", [1.5, None]])
@pytest.mark.parametrize("key", ["windows", "layer_groups", "rotary_bases", "layers"])
def test_lists_of_what_is_no_number_are_refused(tmp_path: Path, key: str, value: object) -> None:
    folder = tmp_path / "native"
    save_model(folder, tiny(40, [HeadConfig("masked_lm")], norm="pre", pooler=False), tokenizer_files={})
    (folder / "manifest.json").unlink()
    values = json.loads((folder / FILE).read_text())
    values["encoder"][key] = value
    (folder / FILE).write_text(json.dumps(values))
    with pytest.raises(UserError):
        load_model(folder)


@FUZZ
@given(data=st.data())
def test_whatever_our_own_config_says_only_a_user_error_leaves(tmp_path: Path, data: Any) -> None:
    folder = tmp_path / "native"
    if not folder.exists():
        save_model(folder, tiny(40, [HeadConfig("masked_lm")], norm="pre", pooler=False), tokenizer_files={})
        (folder / "manifest.json").unlink()
        (folder / "whole.json").write_text((folder / FILE).read_text())
    values = json.loads((folder / "whole.json").read_text())
    part = data.draw(st.sampled_from([values, values["encoder"], values["heads"], values["heads"]["mlm"]]))
    part[data.draw(st.sampled_from([*part, "task"]))] = data.draw(JSON)
    (folder / FILE).write_text(json.dumps(values))
    with contextlib.suppress(UserError):
        load_model(folder)


@FUZZ
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "compress.json", "model.safetensors.index.json"])
def test_whatever_a_file_holds_only_a_user_error_leaves(name: str, good: Path, tmp_path: Path, content: bytes) -> None:
    folder = shutil.copytree(good / "bert", tmp_path / "fuzz", dirs_exist_ok=True)
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()
    if name.endswith(".index.json"):
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with contextlib.suppress(UserError):
        load_model(folder)


# --- tokenizer, compress.json, memory, arguments ------------------------------------------------------------------


def test_a_missing_tokenizer_is_said(bert: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (bert / name).unlink()
    assert "the folder has no tokenizer" in load_model(bert).notes


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{", ["tokenizer.json", "not a valid tokenizer file"]),
        ('{"model": {"vocab": {"a": "x"}}}', ["does not map tokens to ids"]),
        (
            '{"model": {"vocab": {"a": 0, "b": 4000000000}}}',
            ["the tokenizer's highest id is 4000000000 ('b')", "81 word embeddings"],
        ),
        ('{"model": {"vocab": {"a": -1}}}', ["the tokenizer's highest id"]),
        ('{"model": {"vocab": {}}}', ["has no tokens"]),
        ("[" * 100_000, ["not a valid tokenizer file"]),
    ],
)
def test_bad_tokenizer(text: str, parts: list[str], bert: Path) -> None:
    (bert / "tokenizer.json").write_text(text)
    refused(bert, *parts)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"format_version": 3}, ["format version 3 is newer than this program's 2", "upgrade compress"]),
        ({"label_names": ["x", "y", "z"]}, ["config.json and compress.json have different labels", "correct one"]),
        ({"metod": "kd"}, ["unknown key 'metod'", "did you mean 'method'?"]),
        ({"max_length": 0}, ["max_length", "greater than 0"]),
        ({"lineage": [{"role": "teacher"}]}, ["lineage.0.name", "required"]),
    ],
)
def test_bad_compress_json(values: dict[str, Any], parts: list[str], bert: Path) -> None:
    (bert / "compress.json").write_text(json.dumps(values))
    refused(bert, *parts)


def test_more_than_the_memory_is_refused_before_reading(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compress.modelfolder import weights

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("read")

    class Small:
        total = 1000

    monkeypatch.setattr(weights.psutil, "virtual_memory", Small)
    monkeypatch.setattr(safe, "load_safetensors", never)
    refused(bert, "parameters", "this machine has 1.0 kB", code=ExitCode.RESOURCES)


def test_required_heads(distilbert: Path) -> None:
    load_model(distilbert, require={"task"})
    with pytest.raises(UserError, match=r"the model has no 'pair' head: heads: mlm, task; pretrain it first"):
        load_model(distilbert, require={"pair"})
    with pytest.raises(UserError, match=r"unknown head 'tsk'; did you mean 'task'\?"):
        load_model(distilbert, require={"tsk"})
    with pytest.raises(UserError, match="the model has no 'pair' head"):
        load_model(distilbert, keep={"pair"})


# --- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "options", "message"),
    [
        (lambda m: m.encoder.pooler.dense.bias.data.fill_(float("nan")), {}, "contains NaN or infinity.*pooler"),
        (lambda m: None, {"meta": FolderMeta(label_names=("a", "b"))}, "2 label names for a head with 3 labels"),
        (lambda m: None, {"meta": FolderMeta(label_names=("a", "b", "a"))}, "two labels have the same name"),
        (lambda m: None, {"tokenizer_files": {"../evil": b""}}, r"'../evil' is not a tokenizer file"),
        (lambda m: None, {"tokenizer_files": {"vocab.txt": b"a\n" * 0}}, "the tokenizer has no tokens"),
        (
            lambda m: None,
            {"tokenizer_files": {"vocab.txt": "".join(f"t{i}\n" for i in range(999)).encode()}},
            r"the tokenizer's highest id is 998 \('t998'\): the model has",
        ),
        (lambda m: m.encoder.half(), {}, "the weights are torch.float16, torch.float32"),
        (
            lambda m: setattr(m.encoder.layers[1].attention, "query", m.encoder.layers[0].attention.query),
            {},
            r"layers.0.attention.query.weight' and '.*layers.1.attention.query.weight' are the same tensor",
        ),
    ],
)
def test_a_bad_model_is_not_written(
    spoil: Callable[[Any], Any], options: dict[str, Any], message: str, tiny_model: Model, tmp_path: Path
) -> None:
    spoil(tiny_model)
    with pytest.raises(UserError, match=message):
        save_model(tmp_path / "out", tiny_model, **{"tokenizer_files": {}, **options})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tiny_model: Model, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for replace in (False, True):
        with pytest.raises(UserError) as caught:
            save_model(tmp_path / "out", tiny_model, tokenizer_files={}, replace=replace)
        assert caught.value.code == ExitCode.REFUSED
    assert os.listdir(tmp_path / "out") == ["thesis.txt"]
