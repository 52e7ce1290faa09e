"""Answers with the model of an exported folder, in a small process: onnxruntime, tokenizers and numpy, nothing else.

    python model.py "a good film"

    from model import load_model
    load_model().answer("a good film")

`compress export --to web` copies this file into the folder, so that it also runs where this program is not installed.
The answers are those of `compress predict --json`, of the first window of a long text.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

# The words of `compress.data.text.words`: letters and digits with the marks inside words, or one other character.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[@#]?(?:(?![{_CJK}])\w)+(?:[-'’.&](?:(?![{_CJK}])\w)+)*|[^\w\s]")


class TextModel:
    """The model of a folder with task.json. threads: of onnxruntime; None: as many as it takes by itself.

    Raises FileNotFoundError for a folder that `compress export --to web` did not write.
    """

    def __init__(self, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
        import onnxruntime

        at = Path(folder)
        self.task: dict[str, Any] = json.loads((at / "task.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(at / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.task["max_length"], direction=self.task["truncation_side"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.enable_cpu_mem_arena = False  # it would keep the memory of the longest text
        self.session = onnxruntime.InferenceSession(
            str(at / self.task["file"]), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [entry.name for entry in self.session.get_inputs()]

    def answer(self, text: str, pair: str | None = None) -> dict[str, Any]:
        """The answer to a text, or to a pair of texts, as `compress predict --json` prints it; of an embedding model
        the vector of one text, or the cosine similarity of two."""
        kind = self.task["answer"]
        if kind == "similarity":
            return self._compare(text, pair) if pair is not None else {"embedding": self.vector(text).tolist()}
        encoding = self.encode(text, pair)
        logits = self.run(encoding)["logits"]
        if kind == "score":
            return {"score": float(_sigmoid(logits[0]) if self.task.get("sigmoid") else logits[0])}
        if kind == "tags":
            words = self._tag(text, encoding, _softmax(logits))
            scheme = self.task.get("scheme")  # null of other tags
            return {"words": words} | ({"entities": _find_entities(text, words, scheme)} if scheme else {})
        names = self.task["labels"]
        if kind == "any":
            shares = dict(zip(names, _sigmoid(logits).tolist(), strict=True))
            return {"labels": [name for name, share in shares.items() if share > 0.5], "probabilities": shares}
        shares = _softmax(logits / self.task["temperature"])
        return {
            "label": names[int(shares.argmax())],
            "probabilities": dict(zip(names, shares.tolist(), strict=True)),
        }

    def vector(self, text: str) -> np.ndarray:
        """(D,) float32, the embedding of a text."""
        return self.run(self.encode(text))["sentence_embedding"]

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """The tokens of a text or a pair, cut to the maximum length."""
        return self.tokenizer.encode(self._prepare(text), None if pair is None else self._prepare(pair))

    def run(self, encoding: Encoding) -> dict[str, np.ndarray]:
        """What the file gives for one text: output name → (C,) or (L, C)."""
        values = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feed = {name: np.array([values[name]], dtype=np.int64) for name in self._inputs}
        names = [entry.name for entry in self.session.get_outputs()]
        found = self.session.run(names, feed)
        return {name: np.asarray(value)[0] for name, value in zip(names, found, strict=True)}

    def _prepare(self, text: str) -> str:
        whole = self.task.get("prompt", "") + text
        return whole.lower() if self.task.get("lowercase") else whole

    def _compare(self, text: str, pair: str) -> dict[str, Any]:
        one, other = self.vector(text), self.vector(pair)
        norms = float(np.linalg.norm(one) * np.linalg.norm(other))
        return {"similarity": float(one @ other) / norms if norms > 0 else 0.0}

    def _tag(self, text: str, encoding: Encoding, shares: np.ndarray) -> list[dict[str, Any]]:
        """The words with the tag of their first token. A token is the word's that its last character is in."""
        words = [match.span() for match in _WORD.finditer(text)]
        owner = {place: number for number, (start, end) in enumerate(words) for place in range(start, end)}
        first: dict[int, int] = {}
        for token, (start, end) in enumerate(encoding.offsets):
            word = owner.get(end - 1)
            if end > start and word is not None and not encoding.special_tokens_mask[token]:
                first.setdefault(word, token)
        made = []
        for number, (start, end) in enumerate(words):
            row = shares[first[number]] if number in first else None
            label = None if row is None else self.task["labels"][int(row.argmax())]
            share = 0.0 if row is None else float(row.max())
            made.append({"word": text[start:end], "start": start, "end": end, "label": label, "probability": share})
        return made


def load_model(folder: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> TextModel:
    """The model of `folder`; None: of the folder that this file is in."""
    return TextModel(Path(__file__).parent if folder is None else folder, threads=threads)


def _find_entities(text: str, words: list[dict[str, Any]], scheme: str) -> list[dict[str, Any]]:
    """As `evaluation.quality.entities` finds them. scheme: iob2 or bioes."""
    found: list[tuple[str, int, int]] = []
    first, type_ = -1, ""  # of the entity that the next word may continue
    for i, tag in enumerate([*(word["label"] or "O" for word in words), "O"]):
        prefix, kind = tag[:1], tag[1:].strip("-") or "_"
        goes_on = first >= 0 and prefix in "IE" and kind == type_
        if goes_on and prefix == "I":
            continue
        if first >= 0 and (goes_on or scheme == "iob2"):
            found.append((type_, first, i if goes_on else i - 1))
        first, type_ = (i, kind) if prefix == "B" else (-1, "")
        if prefix == "S":
            found.append((kind, i, i))
    places = [(kind, words[a]["start"], words[b]["end"]) for kind, a, b in found]
    return [{"type": kind, "start": start, "end": end, "text": text[start:end]} for kind, start, end in places]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit("usage: python model.py TEXT [SECOND_TEXT]")
    print(json.dumps(load_model().answer(*sys.argv[1:]), ensure_ascii=False))
