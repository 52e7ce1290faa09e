"""One optimizer step of distillation, BERT-base into 6 layers, against Hugging Face modules in fp32 on the same rows.

    python benchmarks/distill_step.py [--loss triple|task] [--lengths mixed|128] [--rounds 5] [--threads 2] [--json]

triple: DistilBERT's three losses (1910.01108) with 15 % of the tokens masked: KL of the vocabulary at every real token
(T = 2, weight 5), cross entropy at the masked ones (2), cosine of the last hidden states (1).  task: KL of two classes.
Random weights, 32 rows, dropout 0.1, gradients clipped to norm 1, AdamW. Their side is the published recipe's: SDPA,
padded to the longest, vocabulary logits at every position. Ours is what `compress distill` runs: the teacher prepared
in bf16, the student under bf16 autocast, the objectives and the optimizer of the training loop. That freed pages are
kept (`compress.training.memory.keep_pages`) holds for the process, so their side gains from it too. Before timing, both
sides compute each loss once without dropout on the same weights; they must agree to 2 %, and the values are printed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import side_by_side as s
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import TrainingPlan
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.objectives import cosine_hidden, masked_lm, soft_targets
from compress.training import memory, precision
from compress.training.module import StageModule
from compress.training.optimizer import Optimizer

ROWS, ROW_SETS = 32, 3
TEMPERATURE = 2.0
WEIGHTS = {"ce": 5.0, "mlm": 2.0, "cos": 1.0}
TARGETS = {("triple", "mixed"): 10.4, ("triple", "128"): 5.0, ("task", "mixed"): 7.2, ("task", "128"): 2.9}
PLAN = TrainingPlan(steps=1, learning_rate=5e-5)
CPU = torch.device("cpu")
Step = Callable[[s.Rows], dict[str, float]]
OURS = "compress bf16"


def main() -> None:
    parser = s.arguments(__doc__ or "", rounds=5)
    parser.add_argument("--loss", choices=["triple", "task", "both"], default="both")
    parser.add_argument("--lengths", choices=["mixed", "128", "both"], default="both")
    parser.add_argument("--all", action="store_true", help="also Hugging Face with fused AdamW and under bf16 autocast")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    memory.keep_pages()
    losses = ["triple", "task"] if args.loss == "both" else [args.loss]
    kinds = ["mixed", "128"] if args.lengths == "both" else [args.lengths]
    s.tell(args, [case(args, loss, kind) for loss in losses for kind in kinds])


def case(args: Any, loss: str, kind: str) -> dict[str, Any]:
    """One case's figures, after a check that both sides compute the same losses."""
    name = "MaskedLM" if loss == "triple" else "SequenceClassification"
    teacher, student = s.theirs(name, 12, 768, 12), s.theirs(name, 6, 768, 12)
    rows = [s.make_rows(kind, ROWS, args.seed + i, masked=loss == "triple") for i in range(ROW_SETS)]
    our_teacher = prepare(s.ours(teacher), "bf16")
    agreement = _agreement(_their_losses(teacher, student, rows[0]), _our_losses(our_teacher, s.ours(student), rows[0]))
    ways = {"hugging face fp32": _their_step(teacher, student.train(), fused=False, bf16=False)}
    if args.all:
        ways["hugging face fp32, fused AdamW"] = _their_step(teacher, copy.deepcopy(student), fused=True, bf16=False)
        ways["hugging face bf16 autocast"] = _their_step(teacher, copy.deepcopy(student), fused=True, bf16=True)
    ways[OURS] = _our_step(our_teacher, s.ours(student).train())
    calls: dict[str, s.Call] = {way: (lambda i, step=step: step(rows[i % ROW_SETS])) for way, step in ways.items()}
    real, wide = sum(r.real for r in rows), sum(r.padded for r in rows)
    return {
        "case": f"{loss} loss, {ROWS} rows of {kind} length",
        "figures": s.in_turns(calls, args.rounds, args.clock),
        "target": {OURS: TARGETS[loss, kind]},
        "notes": f"{real / ROW_SETS:.0f} real tokens, {wide / ROW_SETS:.0f} padded; losses, theirs | ours: {agreement}",
    }


# --- their side: the arithmetic of the reference code, on Hugging Face modules --------------------------------------


def _their_losses(teacher: nn.Module, student: nn.Module, rows: s.Rows) -> dict[str, Tensor]:
    triple = "MaskedLM" in type(student).__name__
    inputs = {"input_ids": rows.ids, "attention_mask": rows.mask, "output_hidden_states": triple}
    with torch.no_grad():
        t = teacher(**inputs)
    o = student(**inputs)
    if not triple:
        return {"ce": _divergence(o.logits, t.logits)}
    real = rows.mask.bool()
    last, teacher_last = o.hidden_states[-1][real], t.hidden_states[-1][real]
    return {
        "ce": _divergence(o.logits[real], t.logits[real]),
        "mlm": F.cross_entropy(o.logits.flatten(0, 1), rows.labels.flatten(), ignore_index=-100),
        "cos": F.cosine_embedding_loss(last, teacher_last, last.new_ones(len(last))),
    }


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    log_p, q = F.log_softmax(student / TEMPERATURE, dim=-1), F.softmax(teacher / TEMPERATURE, dim=-1)
    return F.kl_div(log_p, q, reduction="batchmean") * TEMPERATURE**2


def _their_step(teacher: nn.Module, student: nn.Module, *, fused: bool, bf16: bool) -> Step:
    # Without `fused` torch chooses as it would for the published code.
    adamw = torch.optim.AdamW(
        student.parameters(), lr=PLAN.learning_rate, weight_decay=PLAN.weight_decay, fused=True if fused else None
    )

    def step(rows: s.Rows) -> dict[str, float]:
        adamw.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            losses = _their_losses(teacher, student, rows)
        sum((WEIGHTS[name] * value for name, value in losses.items()), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        adamw.step()
        return {name: value.item() for name, value in losses.items()}

    return step


# --- our side: what the training loop does in a step ----------------------------------------------------------------


def _stage(teacher: Any, student: Model) -> StageModule:
    if "mlm" not in student.head_configs:
        ce = soft_targets.Objective(on="task", temperature=TEMPERATURE)
        return StageModule(student, {"ce": (WEIGHTS["ce"], ce)}, teacher)
    objectives = {
        "ce": (WEIGHTS["ce"], soft_targets.Objective(on="vocabulary", temperature=TEMPERATURE)),
        "mlm": (WEIGHTS["mlm"], masked_lm.Objective()),
        "cos": (WEIGHTS["cos"], cosine_hidden.Objective()),
    }
    return StageModule(student, objectives, teacher)


def _our_losses(teacher: Any, student: Model, rows: s.Rows) -> dict[str, Tensor]:
    with precision.autocast("bf16", CPU):
        return {name: term.value for name, term in _stage(teacher, student)(rows.packed).items()}


def _our_step(teacher: Any, student: Model) -> Step:
    stage = _stage(teacher, student)
    optimizer = Optimizer(stage, PLAN)

    def step(rows: s.Rows) -> dict[str, float]:
        optimizer.clear()
        with precision.autocast("bf16", CPU):
            terms = stage(rows.packed)
        loss = sum((term.weight * term.value for term in terms.values()), torch.zeros(()))
        loss.backward()
        optimizer.step(loss.detach())
        return {name: term.value.item() for name, term in terms.items()}

    return step


def _agreement(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> str:
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name].float(), value.float(), rtol=0.02, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
    return ", ".join(f"{name} {value.item():.4g} | {ours[name].item():.4g}" for name, value in theirs.items())


if __name__ == "__main__":
    main()
