"""The code of a model card: how each library loads the folder and computes with it."""

from __future__ import annotations

import json

from compress.data.task import PAIR_EXAMPLE
from compress.data.tasks import example_of
from compress.modelfolder.card.facts import QUESTION_ANSWERING, Facts
from compress.modelfolder.cross_encoder import RERANKING
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_head import EMBEDDING
from compress.modelfolder.sentence_pooling import VECTOR


def format_usage(meta: FolderMeta, facts: Facts) -> str:
    """Code that computes what the figures are of: of a quantized model with integers, never its float weights."""
    lines = ["## How to use", ""]
    if "task" in facts.heads:
        lines += ["```sh", f"compress predict <this folder> {example_of(meta.task, meta.columns)}", "```", ""]
    if facts.is_static:
        # its vectors are stored in fp16; it would also average and normalize them in fp16, and answer NaN to no token
        code = _with_sentence_transformers(meta, convert=".float()")
        return "\n".join([*lines, "With sentence-transformers (`.float()`: it computes in fp32):", "", *code])
    if meta.task in (EMBEDDING, RERANKING) and facts.is_stock:
        lines += ["With sentence-transformers:", "", *_with_sentence_transformers(meta), ""]
    elif facts.stock_class and facts.is_stock:
        lines += ["With transformers:", "", *_with_transformers(meta, facts.stock_class), ""]
    if facts.onnx:
        computes = ", which computes with integers" if facts.quantized else ""
        if meta.task in (EMBEDDING, RERANKING) and not facts.is_stock:
            file = ', backend="onnx"'
            lines += [f"With sentence-transformers and optimum-onnx{computes}:", ""]
            lines += [*_with_sentence_transformers(meta, file), ""]
        lines += [f"With onnxruntime and the tokenizer{computes}:", "", *_with_onnxruntime(meta), ""]
    if not facts.stock_class or not (facts.is_stock or facts.onnx):
        lines += ["With compress:", "", *_with_compress(meta, facts), ""]
    if facts.quantized and not facts.onnx:
        lines.append("`compress export <this folder> --output <new folder>` writes an ONNX file for other programs.")
    return "\n".join(lines).rstrip()


def _call(meta: FolderMeta, tensors: str) -> str:
    """The tokenizer's arguments."""
    asks = meta.task == QUESTION_ANSWERING
    cut = '"only_second"' if asks else "True"
    length = f", truncation={cut}, max_length={meta.max_length}" if meta.max_length else ""
    pairs = {QUESTION_ANSWERING: '"a question", "a context"', RERANKING: '"a query", "a document"'}
    usual = '"a text", "another text"' if _reads_pairs(meta) else '"a text"'
    texts = _prepared_text(meta) if meta.task == EMBEDDING else pairs.get(meta.task or "", usual)
    return f'{texts}, return_tensors="{tensors}"{length}'


def _reads_pairs(meta: FolderMeta) -> bool:
    """Whether it is given two texts, neither of which is a question or a query."""
    return example_of(meta.task, meta.columns) == PAIR_EXAMPLE


def _prepared_text(meta: FolderMeta) -> str:
    """A text as an embedding model reads it, which no tokenizer does: behind the default prompt, lower-cased."""
    text, prompt = '"a text"', meta.task_settings.get("prompt")
    if prompt:
        text = f"{json.dumps(prompt, ensure_ascii=False)} + {text}"
    if not meta.task_settings.get("lowercase"):
        return text
    return f"({text}).lower()" if prompt else f"{text}.lower()"


def _with_transformers(meta: FolderMeta, name: str) -> list[str]:
    return [
        "```python",
        f"from transformers import AutoTokenizer, {name}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("<this folder>")',
        f'model = {name}.from_pretrained("<this folder>")',
        f"output = model(**tokenizer({_call(meta, 'pt')}))",
        "```",
    ]


def _with_sentence_transformers(meta: FolderMeta, how: str = "", convert: str = "") -> list[str]:
    """how: further arguments of the model. convert: a call that converts the loaded model."""
    ranks = meta.task == RERANKING
    name = "CrossEncoder" if ranks else "SentenceTransformer"
    call = 'predict([("a query", "a document")])' if ranks else 'encode(["a text"])'
    return [
        "```python",
        f"from sentence_transformers import {name}",
        "",
        f'{"scores" if ranks else "vectors"} = {name}("<this folder>"{how}){convert}.{call}',
        "```",
    ]


def _with_onnxruntime(meta: FolderMeta) -> list[str]:
    return [
        "```python",
        "import onnxruntime",
        "from transformers import AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("<this folder>")',
        'session = onnxruntime.InferenceSession("<this folder>/model.onnx")',
        f"encoded = tokenizer({_call(meta, 'np')})",
        'inputs = {entry.name: encoded[entry.name].astype("int64") for entry in session.get_inputs()}',
        f'(vectors,) = session.run(["{VECTOR}"], inputs)'
        if meta.task == EMBEDDING
        else "outputs = session.run(None, inputs)",
        "```",
    ]


def _with_compress(meta: FolderMeta, facts: Facts) -> list[str]:
    integers = ', device="cpu", runtime="torch-int8"' if facts.quantized else ""
    if "task" not in facts.heads:
        load = ["from pathlib import Path", "", "from compress.modelfolder.folder import load_model", ""]
        return ["```python", *load, 'model = load_model(Path("<this folder>")).model', "```"]
    own = {QUESTION_ANSWERING: '"a question", ["a context"]', RERANKING: '["a query"], ["a document"]'}
    texts = own.get(meta.task or "", '"a text", "another text"' if _reads_pairs(meta) else '"a text"')
    return [
        "```python",
        "import compress",
        "",
        f'model = compress.load("<this folder>"{integers})',
        f"answers = model.predict({texts})",
        "```",
    ]
