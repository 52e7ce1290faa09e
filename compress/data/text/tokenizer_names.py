"""Which class of transformers a tokenizer is: by name, by the kind of model, and the names that are not built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.data.text.tokenizer_builders import BUILDERS
from compress.data.text.tokenizer_sources import CONFIG
from compress.errors import UserError, printable

CLASS = "tokenizer_class"
AS_STORED = "TokenizersBackend"
"""The class that uses tokenizer.json as it is."""
GENERIC = frozenset((AS_STORED, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "PythonBackend"))
BY_MODEL = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "nomic_bert": "BertTokenizer",
    "ernie": "BertTokenizer", "gte": "XLMRobertaTokenizer",
    "roberta": "RobertaTokenizer", "longformer": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "albert": "AlbertTokenizer", "modernbert": AS_STORED,
    "mpnet": "MPNetTokenizer", "deberta-v2": "DebertaV2Tokenizer", "model2vec": AS_STORED,
}  # fmt: skip
"""model_type → the class that AutoTokenizer takes where the folder names none."""
ALIASES = {
    **dict.fromkeys(
        ("DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer", "LxmertTokenizer", "MobileBertTokenizer",
         "SqueezeBertTokenizer"), "BertTokenizer",
    ),
    **dict.fromkeys(("BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), "RobertaTokenizer"),
}  # fmt: skip
OTHERS = frozenset((
    "Auto", "Barthez", "Bartpho", "Basic", "BertGeneration", "BertJapanese", "Bertweet", "BigBird", "BioGpt",
    "BlenderbotSmall", "Blenderbot", "ByT5", "CLIP", "CTRL", "Canine", "Character", "Clvp", "CodeGen", "CodeLlama",
    "Cohere", "ConvBert", "CpmAnt", "Cpm", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader", "Deberta", "Dia",
    "Esm", "Esmc", "FNet", "FSMT", "FastSpeech2Conformer", "Flaubert", "Funnel", "GPT2", "GPTNeoXJapanese", "GPTNeoX",
    "GPTSw3", "Gemma", "Lasr", "LayoutLMv2", "LayoutLMv3", "LayoutXLM", "Llama", "Luke", "M2M100", "MBart50", "MBart",
    "MLuke", "Marian", "MarkupLM", "Mecab", "Mgpstr", "MyT5", "Nllb", "Nougat", "OpenAIGPT", "PLBart", "Parakeet",
    "Pegasus", "Perceiver", "Phobert", "Pop2Piano", "ProphetNet", "Qwen2", "Qwen3_5", "Rag", "Reformer", "RemBert",
    "RoCBert", "RoFormer", "SeamlessM4T", "Siglip2", "Siglip", "Speech2Text", "SpeechT5", "Splinter", "T5", "Tapas",
    "Tipsv2", "Udop", "VideoPrism", "Vits", "Wav2Vec2CTC", "Wav2Vec2PhonemeCTC", "Whisper", "Wordpiece", "XGLM", "XLM",
    "XLNet",
))  # fmt: skip
"""Classes of transformers (5.23) that are not built here, without the ending "Tokenizer"."""


def class_of(config: Mapping[str, Any], model: Mapping[str, Any], where: str) -> str:
    """The class that AutoTokenizer takes. config: tokenizer_config.json.  model: the model's config.json, {}: none.

    Raises UserError for a class that is not built here.
    """
    kind = model.get("model_type")
    registered = BY_MODEL.get(kind) if isinstance(kind, str) else None
    named = config.get(CLASS) or model.get(CLASS)
    if named is None:
        return registered or AS_STORED
    if not isinstance(named, str):
        raise UserError(f"'{CLASS}' is not a string", where=where)
    name = named.removesuffix("Fast") if named not in GENERIC else named
    name = ALIASES.get(name, name)
    if registered == AS_STORED or name in GENERIC:
        return AS_STORED
    if name in BUILDERS:
        return name
    if name.removesuffix("Tokenizer") in OTHERS and name.endswith("Tokenizer"):
        raise UserError(
            f"tokenizer class {printable(named, 60)} is not supported", where=where,
            why=f"supported: {', '.join(sorted(BUILDERS))}, and PreTrainedTokenizerFast, which is any tokenizer.json",
            do="if a tokenizer.json in the folder encodes texts alike, "
            f'set "{CLASS}": "PreTrainedTokenizerFast" in {CONFIG}',
        )  # fmt: skip
    return AS_STORED
