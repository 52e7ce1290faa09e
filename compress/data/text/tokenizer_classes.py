"""A folder's tokenizer as transformers' AutoTokenizer reads it, written out as one tokenizer.json.

AutoTokenizer takes a class by name, from tokenizer_config.json or by the kind of model. The classes here build their
pipeline from the vocabulary and from tokenizer_config.json; of a tokenizer.json they keep only vocabulary, merges and
added tokens. So `do_lower_case` of the configuration wins over the normalizer of tokenizer.json. Other classes of
transformers are rejected by name; for a name that transformers does not know, tokenizer.json is used as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from compress.contracts import SPECIAL_TOKENS
from compress.data.text import tokenizer_native as native
from compress.errors import UserError, printable

CONFIG, SPECIAL, ADDED, PIPELINE = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json",
)  # fmt: skip
CLASS = "tokenizer_class"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
AS_STORED = "TokenizersBackend"
"""The class that uses tokenizer.json as it is."""
_GENERIC = frozenset((AS_STORED, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "PythonBackend"))
BY_MODEL = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "nomic_bert": "BertTokenizer",
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


@dataclass(frozen=True)
class Sources:
    """What the files say.

    values: tokenizer_config.json, and special_tokens_map.json where transformers reads that.  stated: id → added token.
    vocabulary: the model's tokens: a table of ids, or pieces with scores in order of the ids.
    """

    values: Mapping[str, Any]
    stated: Mapping[int, AddedToken]
    vocabulary: Any
    merges: list[tuple[str, str]]
    charsmap: bytes | None
    where: str

    def flag(self, key: str, default: bool) -> bool:
        """Raises UserError for what is neither true nor false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise UserError(
                f"'{key}' is neither true nor false", where=f"{self.where}: {CONFIG}", why=printable(repr(value), 40)
            )
        return value

    def token(self, role: str, default: str | None) -> str | AddedToken | None:
        """The special token of a role, with its settings where an added token has this text."""
        key = f"{role}_token"
        if key not in self.values:
            return default
        return self._known(self.values[key], key)

    def _known(self, value: Any, key: str) -> str | AddedToken | None:
        value = as_token(value, f"{self.where}: {CONFIG}: {key}")
        known = {token.content: token for token in self.stated.values()}
        return value if value is None else known.get(text_of(value), value)

    def further(self) -> list[str | AddedToken]:
        """Special tokens without one of the usual roles."""
        found: list[str | AddedToken] = []
        extra = "extra_special_tokens" if "extra_special_tokens" in self.values else "additional_special_tokens"
        for key, value in self.values.items():
            if key == extra:
                rows = list(value.values()) if isinstance(value, dict) else value
                if rows is not None and not isinstance(rows, list):
                    raise UserError(f"'{key}' is not a list of tokens", where=f"{self.where}: {CONFIG}")
                found += [token for row in rows or () if (token := as_token(row, f"{self.where}: {key}")) is not None]
            elif key.endswith("_token") and key.removesuffix("_token") not in ROLES and isinstance(value, str):
                found.append(value)
        return found


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
    name = named.removesuffix("Fast") if named not in _GENERIC else named
    name = ALIASES.get(name, name)
    if registered == AS_STORED or name in _GENERIC:
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


def settle(files: Mapping[str, bytes], model: Mapping[str, Any], where: str) -> bytes:
    """The tokenizer.json that encodes as AutoTokenizer does with these files; the given one where it does already.

    model: the model's config.json.  Raises UserError for a class that is not built here, for files that it cannot be
    built from, and where an added token would get another id than a file gives it.
    """
    config = native.parse(files[CONFIG], f"{where}: {CONFIG}") if CONFIG in files else {}
    if config.get("split_special_tokens"):
        what = "'split_special_tokens' is not supported"
        raise UserError(what, where=f"{where}: {CONFIG}", do="set it to false: special tokens are not split")
    kind = class_of(config, model, where)
    stored = native.parse(files[PIPELINE], f"{where}: {PIPELINE}") if PIPELINE in files else None
    if stored is None and kind == AS_STORED:
        kind = "BertTokenizer" if "vocab.txt" in files else "RobertaTokenizer"
    given = None if stored is None or kind == AS_STORED else native.build(files[PIPELINE], where)
    sources = _sources(files, config, stored, kind, where)
    if stored is None:
        made = _built(kind, sources, None)
    else:
        if kind == AS_STORED and stored.get("post_processor") and _has_all(stored, sources):
            return files[PIPELINE]
        given = given or native.build(files[PIPELINE], where)
        if kind == AS_STORED:
            made = native.build(files[PIPELINE], where)
            _add(made, sources, {role: sources.token(role, None) for role in ROLES})
            if made.post_processor is None:
                made.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
        else:
            made = _built(kind, sources, given)
        if _same(made, given):
            return files[PIPELINE]
    _check_ids(made, sources, where)
    return made.to_str(pretty=True).encode()


def _has_all(stored: Mapping[str, Any], sources: Sources) -> bool:
    """Whether a tokenizer.json holds every token that the other files name."""
    rows = [row for row in _rows(stored) if isinstance(row, dict)]
    held = {(row.get("id"), _settings(as_token(row, sources.where))) for row in rows}
    texts = {row.get("content") for row in rows}
    others = [*(sources.token(role, None) for role in ROLES), *sources.further()]
    return all((number, _settings(token)) in held for number, token in sources.stated.items()) and all(
        token is None or text_of(token) in texts for token in others
    )


def _rows(stored: Mapping[str, Any] | None) -> list[Any]:
    """The added tokens of a tokenizer.json."""
    found = None if stored is None else stored.get("added_tokens")
    return found if isinstance(found, list) else []


def _settings(token: str | AddedToken | None) -> tuple[Any, ...]:
    assert isinstance(token, AddedToken)
    return token.content, token.lstrip, token.rstrip, token.single_word, token.normalized, token.special


def _built(kind: str, sources: Sources, given: tokenizers.Tokenizer | None) -> tokenizers.Tokenizer:
    """given: the tokenizer.json, None: the folder has none."""
    builder = BUILDERS[kind]
    named: dict[str, str | AddedToken | None] = {
        role: sources.token(role, default) for role, default in builder.tokens.items()
    }
    if builder.eager_mask and isinstance(mask := named["mask"], str):  # takes the blank before it
        named["mask"] = AddedToken(mask, lstrip=True, special=True)
    unknown = text_of(named["unk"]) if named["unk"] is not None else ""
    if given is None:
        _require_specials(builder, sources, named)
    made = native.quietly(lambda: builder.make(sources, unknown), sources.where)
    _add(made, sources, named)

    def number(role: str) -> tuple[str, int]:
        text = text_of(named[role])
        found = made.token_to_id(text)
        assert found is not None, text  # `_add` added it where it was not there
        return text, found

    missing = [role for role in builder.around if named[role] is None]
    if missing:
        raise UserError(f"the tokenizer has no {missing[0]} token", where=f"{sources.where}: {CONFIG}")
    if kind == "AlbertTokenizer" and given is not None and given.post_processor is not None:
        made.post_processor = given.post_processor
    else:
        made.post_processor = native.quietly(lambda: builder.around_texts(sources, number), sources.where)
    return made


def _require_specials(
    builder: Builder, sources: Sources, named: Mapping[str, str | AddedToken | None]
) -> None:  # fmt: skip
    """Raise UserError for vocabulary files without a special token: transformers would give it an id of its own."""
    known = {*sources.vocabulary, *(token.content for token in sources.stated.values())}
    texts = {role: text_of(named[role]) for role in (*SPECIAL_TOKENS, "bos", "eos") if named.get(role) is not None}
    missing = {role: text for role, text in texts.items() if text not in known}
    if not missing:
        return
    kind = {"WordPiece": "BERT", "BPE": "RoBERTa"}[builder.model]
    where = f"{sources.where}: {builder.files[0]}"
    why = f"no {next(iter(missing))} token" if kind == "RoBERTa" else "missing: " + ", ".join(missing.values())
    raise UserError(f"this is not a {kind} vocabulary", where=where, why=why)


def _add(
    made: tokenizers.Tokenizer, sources: Sources, named: Mapping[str, str | AddedToken | None]
) -> None:  # fmt: skip
    """Add the tokens in the order in which transformers does, which gives them their ids."""
    tokens: list[str | AddedToken] = [token for _, token in sorted(sources.stated.items(), key=lambda item: item[0])]
    known = {token.content for token in made.get_added_tokens_decoder().values()} | {text_of(t) for t in tokens}
    for value in (*named.values(), *sources.further()):
        if value is not None and text_of(value) not in known and value not in tokens:
            tokens.append(value)
    special = {text_of(value) for value in named.values() if value is not None}
    whole: list[AddedToken] = []
    for token in tokens:
        one = AddedToken(token, special=True) if isinstance(token, str) else token
        if not one.special and one.content in special:
            one = AddedToken(
                one.content, single_word=one.single_word, lstrip=one.lstrip, rstrip=one.rstrip,
                normalized=one.normalized, special=True,
            )  # fmt: skip
        whole.append(one)
    native.quietly(lambda: made.add_tokens(whole), sources.where)


def _check_ids(made: tokenizers.Tokenizer, sources: Sources, where: str) -> None:
    for number, token in sources.stated.items():
        found = made.token_to_id(token.content)
        if found != number:
            raise UserError(
                f"added token '{printable(token.content, 40)}' has the id {number:,}", where=where,
                why="it has no text" if found is None else f"with this vocabulary it gets the id {found:,}",
                do="save the tokenizer again with the vocabulary it was made for",
            )  # fmt: skip


def _same(first: tokenizers.Tokenizer, second: tokenizers.Tokenizer) -> bool:
    """Whether both encode alike; how they decode, pad and truncate is left aside."""
    parts = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
    one, two = (json.loads(made.to_str()) for made in (first, second))
    return all(one[part] == two[part] for part in parts)


# --- what the files say -----------------------------------------------------------------------------------------


def as_token(value: Any, where: str) -> str | AddedToken | None:
    """A token as a configuration gives it: text, or an object with settings. Raises UserError for anything else."""
    if value is None or isinstance(value, str | AddedToken):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        given = {key: flag for key, flag in value.items() if key not in ("__type", "content", "id")}
        known = ("lstrip", "rstrip", "single_word", "normalized", "special")
        if all(key in known and isinstance(flag, bool) for key, flag in given.items()):
            return AddedToken(value["content"], **given)
    raise UserError("this is not a token", where=where, why=printable(repr(value), 80))


def text_of(token: str | AddedToken | None) -> str:
    """The text of a token."""
    return token.content if isinstance(token, AddedToken) else str(token)


def _sources(
    files: Mapping[str, bytes], config: Mapping[str, Any], stored: Mapping[str, Any] | None, kind: str, where: str
) -> Sources:  # fmt: skip
    values: dict[str, Any] = {key: value for key, value in config.items() if key != CLASS}
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    stated: dict[int, AddedToken] = {}

    def state(number: Any, row: Any, place: str) -> None:
        token = as_token(row, place)
        index = int(number) if isinstance(number, str) and number.isdecimal() else number
        if token is None or not isinstance(index, int) or isinstance(index, bool):
            raise UserError("not a table of ids and tokens", where=place, why=printable(repr((number, row)), 80))
        native.check_id(index, place)
        stated[index] = AddedToken(token) if isinstance(token, str) else token

    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        place = f"{where}: {CONFIG}: added_tokens_decoder"
        if not isinstance(decoder, dict):
            raise UserError("not a table of ids and tokens", where=place)
        for number, row in decoder.items():
            state(number, row, place)
    else:
        if SPECIAL in files:
            for key, value in native.parse(files[SPECIAL], f"{where}: {SPECIAL}").items():
                row = value
                if isinstance(value, dict) and isinstance(value.get("content"), str):
                    row = {**value, "special": True}
                values[key] = row
        if ADDED in files:
            special = {text_of(token) for role in ROLES if (token := _plain(values.get(f"{role}_token"))) is not None}
            extra = values.get("extra_special_tokens")
            special |= {text_of(_plain(row)) for row in (extra if isinstance(extra, list) else ())}
            for text, number in native.parse(files[ADDED], f"{where}: {ADDED}").items():
                row = {"content": text, "normalized": text not in special, "special": text in special}
                state(number, row, f"{where}: {ADDED}")
        for row in _rows(stored):
            state(row.get("id") if isinstance(row, dict) else None, row, f"{where}: {PIPELINE}: added_tokens")
    if kind == AS_STORED:
        return Sources(values, stated, None, [], None, where)
    vocabulary, merges = _vocabulary(files, stored, BUILDERS[kind], where)
    charsmap = None if stored is None else native.charsmap(stored.get("normalizer"))
    if kind == "CamembertTokenizer" and values.get("additional_special_tokens") is None:
        values["additional_special_tokens"] = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
    return Sources(values, stated, vocabulary, merges, charsmap, where)


def _plain(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _vocabulary(
    files: Mapping[str, bytes], stored: Mapping[str, Any] | None, builder: Builder, where: str
) -> tuple[Any, list[tuple[str, str]]]:
    """The tokens, and the merges of BPE, of tokenizer.json or of the files that the class has without it."""
    if stored is not None:
        model = stored.get("model")
        model = model if isinstance(model, dict) else {}
        vocabulary, merges = model.get("vocab"), model.get("merges") or []
        if builder.model == "Unigram":
            fits = isinstance(vocabulary, list)
        else:
            fits = isinstance(vocabulary, dict) and (builder.model != "BPE" or "merges" in model)
        if not fits:
            raise UserError(
                f"the tokenizer is not a {builder.name}", where=f"{where}: {PIPELINE}",
                why=f"it has no vocabulary of {builder.model}",
                do=f'correct "{CLASS}" in {CONFIG}: PreTrainedTokenizerFast is any {PIPELINE}',
            )  # fmt: skip
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in merges)
        return vocabulary, [(str(first), str(second)) for first, second in pairs]
    if missing := [name for name in builder.files if name not in files]:
        raise UserError(
            f"{builder.name} needs {' and '.join(builder.files or (PIPELINE,))}", where=where,
            why=f"{missing[0]} is missing",
        )  # fmt: skip
    if not builder.files:
        raise UserError(f"{builder.name} needs {PIPELINE}", where=where, why=f"{PIPELINE} is missing")
    if builder.model == "WordPiece":
        return native.wordpieces(files["vocab.txt"], f"{where}: vocab.txt"), []
    return native.byte_pairs(files, where)


# --- the classes ------------------------------------------------------------------------------------------------

Number = Callable[[str], tuple[str, int]]


@dataclass(frozen=True)
class Builder:
    """How one class makes its pipeline.

    model: of `tokenizers`.  files: those that suffice without tokenizer.json.  tokens: role → special token where the
    configuration names none.  eager_mask: whether the mask takes the blank before it.  make: pipeline with the unknown
    token.  around: roles of the tokens around texts.
    """

    name: str
    model: str
    files: tuple[str, ...]
    tokens: Mapping[str, str | None]
    make: Callable[[Sources, str], tokenizers.Tokenizer]
    around_texts: Callable[[Sources, Number], Any]
    around: tuple[str, str] = ("cls", "sep")
    eager_mask: bool = False


_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>",
}  # fmt: skip


def _wordpiece(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    accents = None if sources.values.get("strip_accents") is None else sources.flag("strip_accents", False)
    return native.wordpiece(
        sources.vocabulary, unknown=unknown, lowercase=sources.flag("do_lower_case", True), strip_accents=accents,
        chinese=sources.flag("tokenize_chinese_chars", True),
    )  # fmt: skip


def _roberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    model = models.BPE(
        vocab=sources.vocabulary, merges=sources.merges, continuing_subword_prefix="", end_of_word_suffix="",
        fuse_unk=False,
    )  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=sources.flag("add_prefix_space", False))
    made.decoder = decoders.ByteLevel()
    return made


def _herbert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    """Word-end BPE behind BERT's own way of cutting (2005.00630)."""
    model = models.BPE(
        vocab=sources.vocabulary, merges=sources.merges, unk_token=unknown, end_of_word_suffix="</w>"
    )  # fmt: skip
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, clean_text=True, handle_chinese_chars=True
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    return made


def _pieces(sources: Sources) -> list[tuple[str, float]]:
    return [tuple(row) for row in sources.vocabulary]


def _metaspace(made: tokenizers.Tokenizer, sources: Sources) -> tokenizers.Tokenizer:
    scheme = "always" if sources.flag("add_prefix_space", True) else "never"
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


def _xlm_roberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(_pieces(sources), unk_id=3, byte_fallback=False))
    if sources.charsmap is not None:
        made.normalizer = normalizers.Precompiled(sources.charsmap)
    return _metaspace(made, sources)


def _camembert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    pieces = _pieces(sources)
    at = next((i for i, (piece, _) in enumerate(pieces) if piece == unknown), 0)
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=at, byte_fallback=False))
    if sources.charsmap is not None:
        made.normalizer = normalizers.Precompiled(sources.charsmap)
    return _metaspace(made, sources)


def _albert(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(_pieces(sources), unk_id=1, byte_fallback=False))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not sources.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if sources.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if sources.charsmap is not None:
        steps.append(normalizers.Precompiled(sources.charsmap))
    made.normalizer = normalizers.Sequence(steps)
    return _metaspace(made, sources)


def _deberta(sources: Sources, unknown: str) -> tokenizers.Tokenizer:
    pieces = _pieces(sources)
    given = sources.values.get("unk_id", 1)
    at = pieces.index((unknown, 0.0)) if (unknown, 0.0) in pieces else given
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=at, byte_fallback=False))
    steps: list[Any] = [normalizers.Lowercase()] if sources.flag("do_lower_case", False) else []
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False),
    ]  # fmt: skip
    made.normalizer = normalizers.Sequence(steps)
    scheme = "always" if sources.flag("add_prefix_space", True) else "first"
    cuts: list[Any] = [pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    if sources.flag("split_by_punct", False):
        cuts.insert(0, pre_tokenizers.Punctuation(behavior="isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


def _with_segments(_: Sources, number: Number) -> Any:
    cls, sep = number("cls"), number("sep")
    return processors.TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0", pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )  # fmt: skip


def _two_separators(_: Sources, number: Number) -> Any:
    bos, eos = number("bos"), number("eos")
    return processors.TemplateProcessing(
        single=[bos[0], "$A", eos[0]], pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]], special_tokens=[bos, eos]
    )


def _of_roberta(sources: Sources, number: Number) -> Any:
    trim, space = sources.flag("trim_offsets", True), sources.flag("add_prefix_space", False)
    return processors.RobertaProcessing(number("sep"), number("cls"), trim, space)


def _of_mpnet(_: Sources, number: Number) -> Any:
    return processors.RobertaProcessing(number("sep"), number("cls"), True, False)


def _of_herbert(_: Sources, number: Number) -> Any:
    return processors.BertProcessing((number("sep")[0], 2), (number("cls")[0], 0))


def _of_albert(_: Sources, number: Number) -> Any:
    cls, sep = ("[CLS]", number("cls")[1]), ("[SEP]", number("sep")[1])
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[cls, sep]
    )


_BPE = ("vocab.json", "merges.txt")
_MPNET = {**_ROBERTA, "unk": "[UNK]"}
_DEBERTA = {"bos": "[CLS]", "eos": "[SEP]", **_BERT}
_ALBERT = {**_DEBERTA, "unk": "<unk>", "pad": "<pad>"}
_HERBERT = {role: name for role, name in _ROBERTA.items() if role not in ("bos", "eos")}
_BUILT = (
    Builder("BertTokenizer", "WordPiece", ("vocab.txt",), _BERT, _wordpiece, _with_segments),
    Builder("RobertaTokenizer", "BPE", _BPE, _ROBERTA, _roberta, _of_roberta),
    Builder("HerbertTokenizer", "BPE", _BPE, _HERBERT, _herbert, _of_herbert),
    Builder("MPNetTokenizer", "WordPiece", ("vocab.txt",), _MPNET, _wordpiece, _of_mpnet, eager_mask=True),
    Builder("XLMRobertaTokenizer", "Unigram", (), _ROBERTA, _xlm_roberta, _two_separators, ("bos", "eos")),
    Builder(
        "CamembertTokenizer", "Unigram", (), _ROBERTA, _camembert, _two_separators, ("bos", "eos"), eager_mask=True
    ),
    Builder("AlbertTokenizer", "Unigram", (), _ALBERT, _albert, _of_albert),
    Builder("DebertaV2Tokenizer", "Unigram", (), _DEBERTA, _deberta, _with_segments),
)
BUILDERS: Mapping[str, Builder] = {builder.name: builder for builder in _BUILT}
"""The classes that are built here, by name."""
