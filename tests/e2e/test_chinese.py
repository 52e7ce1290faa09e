"""Chinese text through the whole pipeline, at toy scale: from a word list to a model that answers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from e2e_toy import QUICK, Cli, write_rows

from compress.errors import columns

THINGS = ("手机", "酒店", "电影", "水果", "洗发水", "平板")
JUDGED = {"好评": ("很好", "不错", "非常喜欢", "不算坏"), "差评": ("很差", "不好", "一点也不喜欢", "坏了")}
RECIPE = f"""
extends: smoke-teacher
description: 中文
data: {{source: 数据, max_length: 24}}
corpus: {{source: 语料.txt, max_length: 24, task_texts: true}}
{QUICK}
stages:
  0: {{vocabulary_size: 200}}
  1: {{masking: {{whole_word: true, word_list: 词表.txt}}, training: {{steps: 4, checkpoint_every: 2}}}}
  2: {{noise: {{rate: 0.1}}, training: {{steps: 4, checkpoint_every: 2}}}}
"""


@pytest.fixture
def chinese(work: Path) -> Path:
    rows = [
        {"text": f"这{unit}{thing}{word}，{end}。", "label": label}
        for label, found in JUDGED.items()
        for unit, thing, word, end in itertools.product("个部", THINGS, found, ("以后还会买", "没有别的了"))
    ]
    rows = [rows[i * 77 % len(rows)] for i in range(len(rows))]
    for split, part in (("train", rows[:96]), ("validation", rows[96:128]), ("test", rows[128:])):
        write_rows(work / "数据" / f"{split}.jsonl", part)
    Path("语料.txt").write_text("\n".join(row["text"] for row in rows[:96]), encoding="utf-8")
    Path("词表.txt").write_text("\n".join([*THINGS, "不错", "非常", "喜欢", "以后"]), encoding="utf-8")
    Path("中文.yaml").write_text(RECIPE, encoding="utf-8")
    return work


def test_from_text_to_answers(chinese: Path, compress: Cli) -> None:
    done = compress("run", "./中文.yaml", "--output", "runs/模型")
    assert done.code == 0, done.err
    assert "语料.txt" in done.err
    assert "mask-overfitting gap" in done.err
    vocabulary = Path("runs/模型/model/vocab.txt").read_text(encoding="utf-8").split("\n")
    assert {"手", "机", "酒", "店"} <= set(vocabulary)
    assert "手机" not in vocabulary

    text = "这个手机很好，以后还会买。"
    answer = compress("predict", "runs/模型/model", text, "--json")
    told = json.loads(answer.out)
    assert told["text"] == text
    assert told["label"] in JUDGED

    shown = compress("predict", "runs/模型/model", "好" * 300)
    assert columns(shown.out.rstrip("\n").split("\t")[2]) <= 200
    assert shown.out.rstrip("\n").endswith("…")


@pytest.mark.thorough
def test_the_same_run_again_without_a_list_hides_other_words(chinese: Path, compress: Cli) -> None:
    """Fingerprints tell the runs apart: a run goes on only with the list that it began with."""
    words = ("run", "./中文.yaml", "--output", "runs/a", "--set", "stages.2.training.steps=2")
    assert compress(*words).code == 0
    Path("词表.txt").write_text("手机\n", encoding="utf-8")
    again = compress(*words, "--resume")
    assert again.code == 3
    assert "its words of stage 1 changed since it started" in again.line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages.1.masking.word_list=词.txt", "no such file or folder: '词.txt'"),
        ("stages.1.masking={whole_word: true, segmenter: 'jieba'}", "masking.segmenter: not of the form module:func"),
        ("stages.1.masking={whole_word: true, segmenter: 'no_jieba:lcut'}", "cannot import 'no_jieba': no such module"),
        ("stages.1.masking.whole_word=false", "word_list has no effect without whole_word"),
        ("stages.1.masking.segmenter=a:b", "word_list and segmenter both define the words; remove one of them"),
        ("stages.2.noise.kinds=[错]", "stages.2.noise.kinds.0: found the text '错', allowed: swap, drop, insert"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(change: str, message: str, chinese: Path, compress: Cli) -> None:
    done = compress("run", "./中文.yaml", "--output", "runs/x", "--set", change)
    assert done.code == 2, done.err
    assert message in done.line
    assert not Path("runs/x").exists()
