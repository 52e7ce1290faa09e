"""A folder's tokenizer as transformers' AutoTokenizer reads it, written out as one tokenizer.json.

AutoTokenizer takes a class by name, from tokenizer_config.json or by the kind of model. The classes here build their
pipeline from the vocabulary and from tokenizer_config.json; of a tokenizer.json they keep only vocabulary, merges and
added tokens. So `do_lower_case` of the configuration wins over the normalizer of tokenizer.json. Other classes of
transformers are rejected by name; for a name that transformers does not know, tokenizer.json is used as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from compress.contracts import SPECIAL_TOKENS
from compress.data.text import tokenizer_native as native
from compress.data.text.tokenizer_builders import BUILDERS, Builder
from compress.data.text.tokenizer_names import AS_STORED, class_of
from compress.data.text.tokenizer_reading import added_rows, read_sources
from compress.data.text.tokenizer_sources import CONFIG, PIPELINE, ROLES, Sources, as_token, text_of
from compress.errors import UserError, printable


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
    sources = read_sources(files, config, stored, kind, where)
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
    rows = [row for row in added_rows(stored) if isinstance(row, dict)]
    held = {(row.get("id"), _settings(as_token(row, sources.where))) for row in rows}
    texts = {row.get("content") for row in rows}
    others = [*(sources.token(role, None) for role in ROLES), *sources.further()]
    return all((number, _settings(token)) in held for number, token in sources.stated.items()) and all(
        token is None or text_of(token) in texts for token in others
    )


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
