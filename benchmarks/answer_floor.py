"""What question answering scores without a model: the sentence of the context that shares most words with the question.

    python benchmarks/answer_floor.py --data "$COMPRESS_DATA/squad_xquad_en" --split test

Words are weighed by how rare they are among the sentences of all contexts (inverse document frequency), so that "the"
does not decide. Prints exact match and F1 by the rules of SQuAD, or of CMRC 2018 for Chinese, with 95 % intervals over
questions; also for the whole context as the answer. Rows without a question are left out.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter

from compress.data.batches.ragged import Ragged
from compress.data.reading.sources import open_table
from compress.data.tables.answers import extract_answer_texts
from evaluation.quality.answers import normalize, rules_of, score_answers, segments
from evaluation.quality.draws import of_mean
from evaluation.quality.estimates import estimate_metric

SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]*(?!\d)|[.!?。！？]+")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--split", default="test")
    args = p.parse_args()
    rows = open_table(args.data, task="question-answering", bad_rows="drop").split(args.split)
    questions, contexts = (rows.columns[role].to_pylist() for role in ("question", "context"))
    assert isinstance(rows.labels, Ragged)
    gold = extract_answer_texts(rows.labels, contexts)
    rules = rules_of(gold)
    print(f"{args.data}, {args.split}: {len(rows):,} questions, scored as {rules}")
    sentences = {context: sentences_of(context) for context in set(contexts)}
    seen = Counter(w for parts in sentences.values() for s in parts for w in set(words(s)))
    total = sum(map(len, sentences.values()))
    weight = {word: math.log((1 + total) / (1 + count)) for word, count in seen.items()}
    nearest = [best(q, sentences[c], weight) for q, c in zip(questions, contexts, strict=True)]
    for name, said in (("nearest sentence", nearest), ("whole context", contexts)):
        scores = score_answers(said, gold, rules)
        shown = []
        for figure in (scores.f1, scores.exact):
            i = estimate_metric(len(figure), of_mean(figure))
            shown.append(f"{100 * i.value:.1f} [{100 * i.low:.1f}, {100 * i.high:.1f}]")
        print(f"{name:17} F1 {shown[0]}  EM {shown[1]}")


def sentences_of(context: str) -> list[str]:
    return [s.strip() for s in SENTENCE.findall(context) if s.strip()] or [context]


def words(text: str) -> list[str]:
    """Latin words in SQuAD's normal form; Chinese characters one by one."""
    return segments(normalize(text))


def best(question: str, sentences: list[str], weight: dict[str, float]) -> str:
    asked = set(words(question))
    return max(sentences, key=lambda s: sum(weight[w] for w in asked & set(words(s))))


if __name__ == "__main__":
    main()
