"""Pretrain an encoder from random weights: masked LM (Devlin et al. 2019), with NSP, SOP (Lan et al. 2020) or none, or
replaced-token detection (Clark et al. 2020, `compress.objectives.replaced_token`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from compress.contracts import BatchSource
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.text.noise import EachEpoch
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
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


class Stage:
    """A tokenizer folder and a corpus → an encoder with a masked-LM head (and a pair head)."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        e = self.spec.encoder
        check_length(self._length(), e.max_positions, where="corpus.max_length")
        return ModelShape(e.layers, e.max_positions, masked_lm=self.spec.generator is None)

    def plan(self) -> list[str]:
        e, t = self.spec.encoder, self.spec.training
        pairs = "" if self.spec.sentence_pairs == "none" else f" + {self.spec.sentence_pairs.upper()}"
        return [
            f"pretrain {e.layers} layers x {e.hidden} ({e.heads} heads, feed-forward {e.intermediate_size})"
            f"{self._plan_groups()}"
            f" with {self.spec.masking.strategy} masked LM{pairs}{self._plan_generator()}: {describe_plan(t, e.hidden)}"
        ]

    def _plan_groups(self) -> str:
        e = self.spec.encoder
        return "" if e.groups is None else f" in {e.groups} group{'s' * (e.groups != 1)} of {e.inner}"

    def prepare(self) -> PreparedStage:
        """A new encoder with random weights, the corpus in blocks, and the masked-LM (and sentence-pair) objectives.

        Raises UserError where there is no tokenizer, for a corpus that cannot be read, and for blocks too long."""
        c, spec = self.context, self.spec
        folder = require_folder(c.tokenizer, "a tokenizer", "--tokenizer", "pretrain")
        tokenizer = Tokenizer.load(folder)
        corpus = c.corpus()
        length = self._length()
        if spec.generator is not None:
            heads = {"rtd": HeadConfig(kind="replaced_token")}
        else:
            heads = {"mlm": HeadConfig(kind="masked_lm")}
        if spec.sentence_pairs != "none":
            heads["pair"] = HeadConfig(kind="sentence_pair", labels=2)
        shape = spec.encoder.model_dump(exclude={"groups", "inner", "intermediate_size"})
        config = EncoderConfig.uniform(
            vocabulary=tokenizer.vocabulary_size,
            pad_id=tokenizer.pad_id,
            attention_dropout=shape["dropout"],
            layer_groups=spec.encoder.layer_groups(),
            feed_forward=spec.encoder.intermediate_size,
            **shape,
        )
        model = Model(config, heads).initialize(c.seed)
        held_out = self._batches(tokenizer, "validation", length)
        source = self._batches(tokenizer, "train", length)
        plan = settle_plan(spec.training, source, config.hidden, c)
        g = spec.generator
        return PreparedStage(
            finish=lambda: StageOutput(model, tokenizer.files(), folder_meta(c, {}, None, corpus)),
            module=self._masked_lm(model) if g is None else self._with_generator(model, g),
            source=source,
            plan=plan,
            validate=corpus_validation(held_out, c) if g is None else self._validate_replaced(held_out),
            select=("mlm_loss" if g is None else "pretraining_loss", "min"),
            identity={"corpus": corpus.fingerprint, "tokenizer": tokenizer.vocabulary_sha},
            params={"student.layers": config.depth, "student.hidden": config.hidden},
            closing=mask_overfitting(source, source.with_mask_seed(OTHER_MASKS + c.seed), c) if g is None else None,
        )

    def _masked_lm(self, model: Model) -> StageModule:
        objectives: dict[str, tuple[float, nn.Module]] = {"masked_lm": (1.0, MaskedLM())}
        if self.spec.sentence_pairs != "none":
            objectives["sentence_pair"] = (1.0, SentencePair())
        return StageModule(model, objectives)

    def _with_generator(self, model: Model, g: GeneratorSpec) -> ReplacedTokenModule:
        """A generator that fills the masked tokens; `model` is the discriminator."""
        generator = build_generator(model, *g.shape(self.spec.encoder), seed=self.context.seed + 1)
        return ReplacedTokenModule(model, generator, g.weight)

    def _validate_replaced(self, held_out: BatchSource) -> Callable[[nn.Module], dict[str, float]]:
        c = self.context
        batches = encode_validation(held_out, c)
        return replaced_validation(batches, lambda: autocast(c.precision, torch.device(c.device)), c.seed)

    def _plan_generator(self) -> str:
        g = self.spec.generator
        if g is None:
            return ""
        hidden, heads, _ = g.shape(self.spec.encoder)
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
