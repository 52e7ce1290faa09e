"""Encoder inference against Hugging Face's BertModel (SDPA, fp32, padded to the longest) on the same rows.

    python benchmarks/inference.py [--shape 6x384] [--rounds 15] [--threads 2] [--json]

Shapes: 6x384 (MiniLM's), 6x768 (DistilBERT's), 12x768 (BERT-base). Cases: one row of 128 tokens, 32 rows of 128, and
32 rows of mixed lengths. Ways: our plain model, and the prepared copy (`compress.encoder.infer.prepare.prepare`) in
fp32 and bf16; for comparison the same Hugging Face module in bf16. fp32 results must agree to 1e-4, else nothing is
printed.
"""

from __future__ import annotations

import copy

import side_by_side as s
import torch

from compress.encoder.infer.prepare import prepare

SHAPES = {"6x384": (6, 384, 12), "6x768": (6, 768, 12), "12x768": (12, 768, 12)}
CASES = {"1 x 128": ("128", 1), "32 x 128": ("128", 32), "32 mixed": ("mixed", 32)}
TARGETS = {"6x384": {"32 mixed": {"prepared fp32": 3.7, "prepared bf16": 5.2}}}
ROW_SETS = 4


def main() -> None:
    parser = s.arguments(__doc__ or "", rounds=15)
    parser.add_argument("--shape", choices=SHAPES, default="6x384")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with torch.inference_mode():
        s.tell(args, [case(args, name) for name in CASES])


def case(args, name: str) -> dict:
    """One case's figures, after a check that both sides compute the same."""
    kind, count = CASES[name]
    reference = s.theirs("Model", *SHAPES[args.shape])
    narrow = copy.deepcopy(reference).bfloat16()
    plain = s.ours(reference)
    fp32, bf16 = prepare(plain), prepare(plain, "bf16")
    rows = [s.make_rows(kind, count, args.seed + i) for i in range(ROW_SETS)]

    def padded(module: torch.nn.Module, i: int) -> torch.Tensor:
        return module(rows[i % ROW_SETS].ids, attention_mask=rows[i % ROW_SETS].mask).last_hidden_state

    expected = padded(reference, 0)[rows[0].mask.bool()]
    for model in (plain, fp32):
        torch.testing.assert_close(model(rows[0].packed).last_hidden, expected, rtol=1e-4, atol=1e-4)
    ways: dict[str, s.Call] = {
        "hugging face fp32": lambda i: padded(reference, i),
        "hugging face bf16": lambda i: padded(narrow, i),
        "plain fp32": lambda i: plain(rows[i % ROW_SETS].packed),
        "prepared fp32": lambda i: fp32(rows[i % ROW_SETS].packed),
        "prepared bf16": lambda i: bf16(rows[i % ROW_SETS].packed),
    }
    figures = s.in_turns(ways, args.rounds, args.clock, warmup=ROW_SETS)
    real, wide = sum(r.real for r in rows), sum(r.padded for r in rows)
    notes = f"{real / ROW_SETS:.0f} real tokens, {wide / ROW_SETS:.0f} padded"
    target = TARGETS.get(args.shape, {}).get(name, {})
    return {"case": f"{args.shape}, {name}", "figures": figures, "target": target, "notes": notes}


if __name__ == "__main__":
    main()
