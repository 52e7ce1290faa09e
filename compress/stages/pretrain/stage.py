"""Pretrain an encoder: masked LM (Devlin et al. 2019), with NSP, SOP (Lan et al. 2020) or none, or replaced-token
detection (Clark et al. 2020, `compress.objectives.replaced_token`). It starts from random weights, or from a checkpoint
(continued pretraining: Gururangan et al. 2020, arXiv 2004.10964)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from compress.contracts import BatchSource
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.text.noise import EachEpoch
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import format_count
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.names import model_label
from compress.objectives.masked_lm import Objective as MaskedLM
from compress.objectives.sentence_pair import Objective as SentencePair
from compress.stages.pretrain.replaced import ReplacedTokenModule, build_generator, replaced_validation
from compress.stages.pretrain.spec import GeneratorSpec, Spec
from compress.stages.shared.corpora import corpus_batches, corpus_validation, encode_validation, mask_overfitting
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.training_plan import describe_plan, settle_plan
from compress.training.module import StageModule
from compress.training.precision import autocast

OTHER_MASKS = 1 << 32
"""Added to a seed, which is smaller: masks that no training has seen."""
Validate = Callable[[nn.Module], Mapping[str, float]]
Closing = Callable[[nn.Module, int], Mapping[str, float]]


@dataclass(frozen=True)
class StartedEncoder:
    """What is pretrained. parents: role → folder, of the model that it starts from.  tells_tokens: whether its
    masked-LM head was trained before."""

    model: Model
    tokenizer: Tokenizer
    tokenizer_files: Mapping[str, bytes]
    parents: Mapping[str, Path]
    tells_tokens: bool = False


class Stage:
    """A corpus and a tokenizer folder, or a model, → an encoder with a masked-LM head (and a pair head)."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        e = self.spec.encoder
        if e is not None:
            check_length(self._length(), e.max_positions, where="corpus.max_length")
            return ModelShape(e.layers, e.max_positions, masked_lm=self.spec.generator is None)
        if start is None:
            return None
        check_length(self._length(), start.positions, where="corpus.max_length")
        return replace(start, masked_lm=True, embeds=False)

    def plan(self) -> list[str]:
        pairs = "" if self.spec.sentence_pairs == "none" else f" + {self.spec.sentence_pairs.upper()}"
        who, hidden = self._plan_encoder()
        told = describe_plan(self.spec.training, hidden)
        return [f"{who} with {self.spec.masking.strategy} masked LM{pairs}{self._plan_generator()}: {told}"]

    def _plan_encoder(self) -> tuple[str, int | None]:
        """What is pretrained, and its hidden size as far as it is known."""
        e, folder = self.spec.encoder, self.context.model
        if e is None:
            if folder is None:
                return "pretrain the model further", None
            return f"pretrain {model_label(folder)} further", modelfolder.inspect(folder).config.hidden
        groups = "" if e.groups is None else f" in {format_count(e.groups, 'group')} of {e.inner}"
        shape = f"{e.layers} layers x {e.hidden} ({e.heads} heads, feed-forward {e.intermediate_size})"
        return f"pretrain {shape}{groups}", e.hidden

    def prepare(self) -> PreparedStage:
        """The encoder, the corpus in blocks, and the masked-LM (and sentence-pair) objectives.

        Raises UserError where there is no tokenizer or model, for a corpus that cannot be read, and for blocks too
        long."""
        c, spec = self.context, self.spec
        encoder = self._build() if spec.encoder is not None else self._load()
        corpus, length, model = c.corpus(), self._length(), encoder.model
        held_out = self._batches(encoder.tokenizer, "validation", length)
        source = self._batches(encoder.tokenizer, "train", length)
        plan = settle_plan(spec.training, source, model.config.hidden, c)
        g = spec.generator
        module = self._masked_lm(model) if g is None else self._with_generator(model, g)
        validate = corpus_validation(held_out, c) if g is None else self._validate_replaced(held_out)
        closing = None
        if g is None:
            closing = self._close(source, validate, validate(module) if encoder.tells_tokens else {})
        return PreparedStage(
            finish=lambda: StageOutput(model, encoder.tokenizer_files, folder_meta(c, encoder.parents, None, corpus)),
            module=module,
            source=source,
            plan=plan,
            validate=validate,
            select=("mlm_loss" if g is None else "pretraining_loss", "min"),
            identity={"corpus": corpus.fingerprint, "tokenizer": encoder.tokenizer.vocabulary_sha},
            params={"student.layers": model.config.depth, "student.hidden": model.config.hidden},
            closing=closing,
        )

    def _close(self, source: CorpusBatches | EachEpoch, validate: Validate, before: Mapping[str, float]) -> Closing:
        """Figures at the end: the gap between the masks seen and fresh ones, and the loss on held-out text. before:
        what `validate` gave of the model that is pretrained further, empty for a new head."""
        c = self.context
        gap = mask_overfitting(source, source.with_mask_seed(OTHER_MASKS + c.seed), c)

        def closing(module: nn.Module, steps: int) -> dict[str, float]:
            figures, after = gap(module, steps), validate(module)
            if "mlm_loss" not in after:  # another process of the team reports
                return figures
            loss = after["mlm_loss"]
            old = f"; {before['mlm_loss']:.3f} before" if before else ""
            c.say(f"{c.folder.name}: masked-LM loss {loss:.3f} on held-out text, perplexity {math.exp(loss):.1f}{old}")
            return figures | {f"{name}_before": value for name, value in before.items()}

        return closing

    def _build(self) -> StartedEncoder:
        """A new encoder with random weights for the tokenizer of an earlier stage or a flag."""
        c, spec = self.context, self.spec
        assert spec.encoder is not None
        tokenizer = Tokenizer.load(require_folder(c.tokenizer, "a tokenizer", "--tokenizer", "pretrain"))
        shape = spec.encoder.model_dump(exclude={"groups", "inner", "intermediate_size"})
        config = EncoderConfig.uniform(
            vocabulary=tokenizer.vocabulary_size,
            pad_id=tokenizer.pad_id,
            attention_dropout=shape["dropout"],
            layer_groups=spec.encoder.layer_groups(),
            feed_forward=spec.encoder.intermediate_size,
            **shape,
        )
        model = Model(config, self._list_heads()).initialize(c.seed)
        return StartedEncoder(model, tokenizer, tokenizer.files(), {})

    def _load(self) -> StartedEncoder:
        """The encoder of the model, with its own masked-LM and pair heads where it has them, without its task head."""
        c = self.context
        folder = require_folder(c.model, "a model to start from", "--model", "pretrain")
        info, wanted = modelfolder.inspect(folder), self._list_heads()
        new = {name: info.new_head(head) for name, head in wanted.items() if name not in info.heads}
        kept = set(wanted) - set(new)
        loaded = modelfolder.load_model(folder, keep=kept, new_heads=new, seed=c.seed, device=c.device)
        for note in loaded.notes:
            c.say(note)
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
        return StartedEncoder(loaded.model, tokenizer, loaded.tokenizer_files, {"start": folder}, "mlm" in kept)

    def _list_heads(self) -> dict[str, HeadConfig]:
        """The heads that the objectives read, by name."""
        if self.spec.generator is not None:
            heads = {"rtd": HeadConfig(kind="replaced_token")}
        else:
            heads = {"mlm": HeadConfig(kind="masked_lm")}
        if self.spec.sentence_pairs != "none":
            heads["pair"] = HeadConfig(kind="sentence_pair", labels=2)
        return heads

    def _masked_lm(self, model: Model) -> StageModule:
        objectives: dict[str, tuple[float, nn.Module]] = {"masked_lm": (1.0, MaskedLM())}
        if self.spec.sentence_pairs != "none":
            objectives["sentence_pair"] = (1.0, SentencePair())
        return StageModule(model, objectives)

    def _with_generator(self, model: Model, g: GeneratorSpec) -> ReplacedTokenModule:
        """A generator that fills the masked tokens; `model` is the discriminator."""
        assert self.spec.encoder is not None
        generator = build_generator(model, *g.shape(self.spec.encoder), seed=self.context.seed + 1)
        return ReplacedTokenModule(model, generator, g.weight)

    def _validate_replaced(self, held_out: BatchSource) -> Callable[[nn.Module], dict[str, float]]:
        c = self.context
        batches = encode_validation(held_out, c)
        return replaced_validation(batches, lambda: autocast(c.precision, torch.device(c.device)), c.seed)

    def _plan_generator(self) -> str:
        g, encoder = self.spec.generator, self.spec.encoder
        if g is None or encoder is None:
            return ""
        hidden, heads, _ = g.shape(encoder)
        return f" of a generator x {hidden} ({heads} heads) + {g.weight:g} x replaced-token detection"

    def _length(self) -> int:
        """Pieces of one block."""
        corpus = self.context.recipe.corpus
        assert corpus is not None
        return self.spec.block_length or corpus.max_length

    def _batches(self, tokenizer: Tokenizer, split: str, length: int) -> CorpusBatches | EachEpoch:
        s = self.spec
        return corpus_batches(
            self.context,
            tokenizer,
            split,
            s.masking,
            s.training,
            block_length=length,
            pairs=s.sentence_pairs,
            across_documents=s.across_documents,
            noise=s.noise,
        )
