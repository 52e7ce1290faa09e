"""What is saved comes back bit by bit; old and odd spellings load; heads are new only when that was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from example_counts import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.errors import ExitCode, UserError
from compress.modelfolder import family, private
from compress.modelfolder.folder import (
    FolderMeta,
    Parent,
    RecipeNote,
    annotate,
    fingerprint,
    inspect,
    is_model_folder,
    load_model,
    same_vocabulary,
    save_model,
)
from compress.storage import atomic, safe

MLM, TASK, PAIR = HeadConfig("masked_lm"), HeadConfig("classification", labels=3), HeadConfig("sentence_pair")


def equal(first: Model, second: Model) -> None:
    a, b = first.state_dict(), second.state_dict()
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def refill(model: Model) -> Model:
    """Random numbers everywhere, also where initialisation leaves zeros and ones."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


# --- bit by bit -------------------------------------------------------------------------------------------------

SHAPES = st.builds(LayerShape, st.integers(1, 3), st.integers(1, 5), st.integers(1, 7))


@st.composite
def models(draw: Any) -> Model:
    layers = draw(st.lists(SHAPES, min_size=1, max_size=4))
    if draw(st.booleans()):
        layers = [layers[0]] * len(layers)
    shared = len(set(layers)) == 1 and draw(st.booleans())
    shape = layers[0]
    config = EncoderConfig(
        vocabulary=draw(st.integers(2, 12)),
        hidden=draw(st.sampled_from([shape.attention_width, 8])),
        layers=tuple(layers),
        embedding=draw(st.sampled_from([None, 3])),
        layer_groups=(0,) * len(layers) if shared else None,
        norm=draw(st.sampled_from(["post", "pre"])),
        bias=draw(st.booleans()),
        gated=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        activation=draw(st.sampled_from(["gelu", "gelu_new", "relu", "silu"])),
        positions=draw(st.sampled_from(["learned", "sinusoidal", "sinusoidal_start"])),
        max_positions=draw(st.integers(1, 9)),
        position_offset=draw(st.sampled_from([0, 2])),
        segments=draw(st.integers(0, 2)),
        pooler=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        pad_id=draw(st.integers(0, 1)),
        windows=draw(st.sampled_from([None, (2,) * len(layers)])),
    )
    style = "bert" if config.pooler else "distilbert"
    heads = [MLM, HeadConfig("classification", labels=draw(st.integers(1, 3)), style=style)]
    heads += [PAIR] if config.pooler else []
    chosen = draw(st.lists(st.sampled_from(heads), unique_by=lambda head: head.name))
    return refill(Model(config, {head.name: head for head in chosen}))


@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models())
def test_any_model_comes_back_bit_by_bit(model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", model, tokenizer_files={}, replace=True)
    loaded = load_model(folder)
    equal(model, loaded.model)
    if (folder / private.WEIGHTS).is_file():
        assert (loaded.config, dict(loaded.heads)) == (model.config, model.head_configs)
    expected = sum(t.numel() for t in model.parameters())
    info = inspect(folder)
    assert info.parameters == expected
    tables = [model.get_parameter(name).numel() for name in model.embedding_parameter_names()]
    assert info.parameters_without_embeddings == expected - sum(tables)
    assert atomic.verify_folder(folder) == []
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=loaded.meta, replace=True)
    weights = private.WEIGHTS if (folder / private.WEIGHTS).is_file() else "model.safetensors"
    for name in (weights, "config.json", "compress.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"layers": (LayerShape(2, 16, 40), LayerShape(2, 16, 24))}, "its layers differ in shape"),
        ({"layers": (LayerShape(1, 16, 40),) * 2}, "its heads (1 of width 16) do not add up to the hidden size 32"),
        ({"layer_groups": (0, 0)}, "its layers share parameters"),
        ({"embedding": 8, "norm": "pre"}, "its embedding width 8 differs from its hidden size 32"),
        ({"norm": "pre"}, "it has pre-layer normalization"),
        ({"position_offset": 2}, "its positions start at row 2"),
        ({"windows": (2, None), "global_tokens": 1}, "it has sliding-window attention"),
        ({"positions": "sinusoidal"}, "its positions are fixed sinusoids, not a learned table"),
    ],
)
def test_what_no_stock_class_computes_is_kept_in_files_of_our_own(changes: Any, objection: str, tmp_path: Path) -> None:
    values = {"vocabulary": 40, "hidden": 32, "layers": (LayerShape(2, 16, 40),) * 2, "max_positions": 8}
    model = refill(Model(EncoderConfig(**{**values, **changes}), {"mlm": MLM}))
    folder = save_model(tmp_path / "model", model, tokenizer_files={}, meta=FolderMeta(family="bert"))
    loaded = load_model(folder)
    equal(model, loaded.model)
    assert not (folder / "model.safetensors").exists()
    assert loaded.config == model.config
    card = (folder / "README.md").read_text()
    assert re.search(rf"\*\*transformers cannot load this folder\*\*: {re.escape(objection)}[^.;]*\. Its weights", card)


def test_shared_layers_and_the_tied_table_are_stored_once(tmp_path: Path) -> None:
    shape = LayerShape(2, 16, 40)
    config = EncoderConfig(vocabulary=500, hidden=32, layers=(shape,) * 6, layer_groups=(0, 0, 0, 1, 1, 1))
    model = Model(config, {"mlm": MLM})
    folder = save_model(tmp_path / "shared", model, tokenizer_files={})
    with safe_open(folder / private.WEIGHTS, "pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
    assert len([n for n in names if n.endswith("attention.query.weight")]) == 2
    assert not [n for n in names if "decoder" in n]
    assert inspect(folder).disk_mb == pytest.approx(sum(p.numel() for p in model.parameters()) * 4 / 1e6, rel=0.2)
    loaded = load_model(folder).model
    assert len(loaded.encoder.layers) == 2
    with torch.no_grad():  # tied still: a change of the table shows in the logits' matrix
        loaded.encoder.embeddings.word.weight[3] += 1
    output = loaded.forward_padded(torch.tensor([[1, 2]]), needs=Needs(mlm="all"))
    assert output.vocabulary is not None
    assert output.vocabulary.weight is loaded.encoder.embeddings.word.weight


def test_half_of_a_bert_fits_distilbert(tiny_model: Model, tmp_path: Path) -> None:
    student = take_layers(tiny_model, [0], heads=["mlm"], segments="drop", pooler=False)
    folder = save_model(tmp_path / "student", student, tokenizer_files={}, meta=FolderMeta(family="bert"))
    assert inspect(folder).stock_class == "DistilBertForMaskedLM"
    equal(student, load_model(folder).model)


def test_the_preferred_family_wins_where_it_fits() -> None:
    bert = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=1, heads=1, feed_forward=8)
    distilbert = EncoderConfig.uniform(
        vocabulary=9, hidden=8, layers=1, heads=1, feed_forward=8, segments=0, pooler=False
    )
    assert family.choose(bert, {}, "distilbert")[0].model_type == "bert"
    assert family.choose(distilbert, {}, "bert")[0].model_type == "distilbert"
    chosen, objection = family.choose(distilbert, {"task": HeadConfig("classification", style="distilbert")}, "bert")
    assert (chosen.model_type, objection) == ("distilbert", None)


def test_half_precision_is_stored_and_widened(tiny_model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "half", tiny_model.to(torch.bfloat16), tokenizer_files={})
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = load_model(folder)
    assert loaded.notes[0] == "weights stored as bfloat16 were converted to float32"
    assert inspect(folder).dtypes == ("BF16",)
    equal(tiny_model.float(), loaded.model)


def test_half_precision_of_transformers(stock: Callable[..., tuple[Any, Path]]) -> None:
    reference, folder = stock("BertForSequenceClassification")
    reference.half().save_pretrained(folder)
    loaded = load_model(folder)
    assert loaded.notes[0] == "weights stored as float16 were converted to float32"
    word = reference.bert.embeddings.word_embeddings.weight
    assert torch.equal(loaded.model.encoder.embeddings.word.weight, word.float())


def test_shards_of_transformers(stock: Callable[..., tuple[Any, Path]]) -> None:
    reference, folder = stock("BertForPreTraining")
    whole = load_model(folder).model
    (folder / "model.safetensors").unlink()
    reference.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    equal(whole, load_model(folder).model)
    assert inspect(folder).disk_mb > 0.02
    assert is_model_folder(folder)
    assert len(fingerprint(folder)) == 64


# --- spellings --------------------------------------------------------------------------------------------------


def respell(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def _gamma(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {next((n.replace(a, b) for a, b in old.items() if a in n), n): t for n, t in state.items()}


def _copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"].clone()
    return state


def _only_the_copy(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["cls.predictions.decoder.bias"] = state.pop("cls.predictions.bias")
    return state


def _buffers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["bert.embeddings.position_ids"] = torch.arange(24)[None]
    state["bert.embeddings.token_type_ids"] = torch.zeros(1, 24, dtype=torch.long)
    return state


def _no_prefix(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("bert."): tensor for name, tensor in state.items()}


@pytest.mark.parametrize("change", [_gamma, _copies, _only_the_copy, _buffers, _no_prefix])
def test_other_spellings_of_bert(change: Any, stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertForPreTraining")
    expected = load_model(folder).model
    respell(folder, change)
    equal(expected, load_model(folder).model)


def test_a_bare_bert_with_the_prefix_and_without_a_pooler(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertModel")
    expected = load_model(folder).model
    respell(folder, lambda s: {f"bert.{n}": t for n, t in s.items()})
    equal(expected, load_model(folder).model)
    respell(folder, lambda s: {n: t for n, t in s.items() if "pooler" not in n})
    loaded = load_model(folder)
    assert not loaded.config.pooler
    assert loaded.model.encoder.pooler is None


def test_other_spellings_of_distilbert(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("DistilBertForMaskedLM")
    expected = load_model(folder).model
    word = "distilbert.embeddings.word_embeddings.weight"
    respell(folder, lambda s: {**s, "vocab_projector.weight": s[word].clone()})
    equal(expected, load_model(folder).model)


def test_a_config_without_architectures_or_labels(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertForSequenceClassification", num_labels=4)
    values = json.loads((folder / "config.json").read_text())
    for key in ("architectures", "id2label", "label2id"):
        del values[key]
    (folder / "config.json").write_text(json.dumps(values))
    loaded = load_model(folder)
    assert loaded.heads["task"].labels == 4
    assert loaded.label_names == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")


# --- heads ------------------------------------------------------------------------------------------------------


def test_a_new_head_is_asked_for_and_told(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertForMaskedLM")
    assert "task" not in load_model(folder).heads
    with pytest.raises(UserError, match=r"the model has no 'task' head: heads: mlm; fine-tune it first: compress fine"):
        load_model(folder, require={"task"})
    first = load_model(folder, keep=(), new_heads={"task": TASK}, seed=3)
    assert set(first.heads) == {"task"}
    assert first.config.pooler
    assert first.notes == (
        "the folder has no tokenizer",
        "new pooler, initialized from seed 3: the checkpoint has none",
        "new 'task' head, initialized from seed 3",
        "the checkpoint's 'mlm' head was removed",
    )
    equal(first.model, load_model(folder, keep=(), new_heads={"task": TASK}, seed=3).model)
    other = load_model(folder, keep=(), new_heads={"task": TASK}, seed=4).model
    assert not torch.equal(first.model.heads["task"].classifier.weight, other.heads["task"].classifier.weight)
    weight = first.model.encoder.pooler.dense.weight
    assert 0.2 < float(weight.detach().std()) < 0.4  # the config's initializer_range is 0.3
    assert all(p.requires_grad for p in first.model.parameters())


def test_a_new_head_replaces_the_checkpoints(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertForSequenceClassification", num_labels=3)
    old = load_model(folder)
    new = load_model(folder, new_heads={"task": HeadConfig("classification", labels=5)})
    assert new.heads["task"].labels == 5
    assert new.label_names == ()
    pooler = "encoder.pooler.dense.weight"
    assert torch.equal(new.model.get_parameter(pooler), old.model.get_parameter(pooler))
    assert "new 'task' head, initialized from seed 0" in new.notes
    assert "new pooler" not in " ".join(new.notes)


@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel", "BertForMaskedLM"])
def test_a_new_head_of_the_right_style_keeps_the_model_in_its_family(
    name: str, stock: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    _, folder = stock(name)
    head = inspect(folder).new_head(HeadConfig("classification"))
    loaded = load_model(folder, keep=(), new_heads={"task": head})
    saved = save_model(tmp_path / "saved", loaded.model, tokenizer_files={}, meta=loaded.meta)
    assert inspect(saved).stock_class == f"{name.partition('ert')[0]}ertForSequenceClassification"


def test_keep_leaves_heads_behind(tiny_model: Model, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "all", tiny_model, tokenizer_files={})
    loaded = load_model(folder, keep={"mlm"})
    assert set(loaded.model.heads) == {"mlm"}
    assert "the checkpoint's 'task' head was removed" in loaded.notes


# --- what can be asked without loading ----------------------------------------------------------------------------


def test_inspect_reads_no_tensor(
    tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = FolderMeta(label_names=("a", "b", "c"), method="finetune")
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files=toy_tokenizer_files, meta=meta)
    monkeypatch.delattr(safe, "load_safetensors")
    info = inspect(str(folder))
    assert info.family == "bert"
    assert info.stock_class == "BertForSequenceClassification"
    assert info.label_names == ("a", "b", "c")
    assert set(info.heads) == {"mlm", "task", "pair"}
    assert info.parameters == sum(p.numel() for p in tiny_model.parameters())
    assert info.disk_mb == (folder / "model.safetensors").stat().st_size / 1e6
    assert info.dtypes == ("F32",)
    assert info.vocabulary_tokens == tiny_model.config.vocabulary
    assert info.meta.method == "finetune"
    assert info.notes == ()


def test_is_model_folder(tiny_model: Model, tmp_path: Path) -> None:
    assert is_model_folder(save_model(tmp_path / "model", tiny_model, tokenizer_files={}))
    assert not is_model_folder(tmp_path)
    assert not is_model_folder(tmp_path / "nothing")


def test_fingerprint_follows_what_decides_the_output(
    tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path
) -> None:
    def made(name: str, **options: Any) -> str:
        files = options.pop("files", toy_tokenizer_files)
        return fingerprint(save_model(tmp_path / name, tiny_model, tokenizer_files=files, **options))

    first = made("a", meta=FolderMeta(method="x"), card="one")
    assert first == made("b", meta=FolderMeta(method="y"), card="two")
    assert first != made("c", meta=FolderMeta(label_names=("p", "q", "r")))
    assert first != made("d", files={"vocab.txt": toy_tokenizer_files["vocab.txt"]})
    with torch.no_grad():
        tiny_model.heads["mlm"].bias[0] += 1e-6
    assert first != made("e")


def test_same_vocabulary(
    tiny_model: Model, toy_vocabulary: list[str], toy_tokenizer_files: dict[str, bytes], tmp_path: Path
) -> None:
    def folder(name: str, files: dict[str, bytes]) -> Path:
        return save_model(tmp_path / name, tiny_model, tokenizer_files=files)

    whole = folder("whole", toy_tokenizer_files)
    plain = folder("plain", {"vocab.txt": "\r\n".join(toy_vocabulary).encode()})
    swapped = [toy_vocabulary[1], toy_vocabulary[0], *toy_vocabulary[2:]]
    turned = folder("turned", {"vocab.txt": "\n".join(swapped).encode()})
    shorter = folder("shorter", {"vocab.txt": "\n".join(toy_vocabulary[:-1]).encode()})
    assert same_vocabulary(whole, plain)
    assert not same_vocabulary(whole, turned)
    assert not same_vocabulary(whole, shorter)
    assert load_model(whole).meta.vocabulary_sha256 == load_model(plain).meta.vocabulary_sha256
    with pytest.raises(UserError, match=r"the folder has no tokenizer: looked for tokenizer.json, vocab.txt"):
        same_vocabulary(whole, folder("none", {}))


# --- the rest of the folder -------------------------------------------------------------------------------------


def test_tokenizer_files_and_meta_come_back(
    tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path
) -> None:
    meta = FolderMeta(
        task="classification",
        label_names=("a", "b", "c"),
        method="distilbert",
        max_length=32,
        lineage=(Parent(role="teacher", name="big", fingerprint="f" * 64),),
        recipe=RecipeNote(name="distilbert", sha256="0" * 64, resolved={"seed": 3}),
    )
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files=toy_tokenizer_files, meta=meta)
    loaded = load_model(folder)
    assert dict(loaded.tokenizer_files) == toy_tokenizer_files
    filled = {"family", "vocabulary_sha256", "software"}
    assert loaded.meta.model_dump(exclude=filled) == meta.model_dump(exclude=filled)
    assert loaded.meta.family == "bert"
    assert set(loaded.meta.software) == {"compress", "torch"}
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "compress.json",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_annotate_changes_nothing_but_what_is_told(
    tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "model", tiny_model, tokenizer_files=toy_tokenizer_files)
    before = fingerprint(folder)
    inode = (folder / "model.safetensors").stat().st_ino
    annotate(folder, load_model(folder).meta.model_copy(update={"method": "finetune"}))
    loaded = load_model(folder)
    assert loaded.meta.method == "finetune"
    assert loaded.label_names == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "made by: finetune" in (folder / "README.md").read_text()
    assert fingerprint(folder) == before
    assert (folder / "model.safetensors").stat().st_ino == inode
    assert atomic.verify_folder(folder) == []
    equal(tiny_model, loaded.model)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_annotate_leaves_a_strangers_folder_alone(stock: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = stock("BertModel")
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(UserError, match="manifest"):
        annotate(folder, FolderMeta())
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_failed_save_leaves_nothing(tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_json", full)
    with pytest.raises(UserError, match="the disk is full") as caught:
        save_model(tmp_path / "model", tiny_model, tokenizer_files={})
    assert caught.value.code == ExitCode.RESOURCES
    assert list(tmp_path.iterdir()) == []
