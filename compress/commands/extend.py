"""`compress extend`: a model folder in, one out that reads longer texts."""

from __future__ import annotations

import json
from collections.abc import Mapping

from compress.console import Console
from compress.contracts import RunOptions
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.unsupported import refuse_quantized, refuse_static
from compress.encoder.reshape.extend import extend, extend_config
from compress.encoder.reshape.longformer import longformer_config, to_longformer
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.families.longformer import count_global_tokens
from compress.modelfolder.family import load_families
from compress.modelfolder.folder import FolderMeta, Parent
from compress.modelfolder.names import model_label
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import sentence_files
from compress.run.folder import new_output

METHOD = "extend"
LONGFORMER = "longformer"
NO_CLASS = "compress only: no transformers class computes it"
HINT = "; --longformer writes a folder that transformers loads, where Longformer has the model's shape"
_TOKENIZER = "tokenizer_config.json"


def extend_folder(
    name: str,
    max_positions: int,
    window: int | None,
    global_tokens: int | None,
    options: RunOptions,
    *,
    longformer: bool = False,
) -> EncoderConfig:
    """Write `options.output`: the model called `name` with `extend_config`; only told with `dry_run`.

    longformer: as a folder of transformers' Longformer classes.
    Raises UserError for what `extend_config` refuses, for a model that Longformer cannot express, and when there is no
    output or it exists already.
    """
    console = Console(quiet=options.quiet, json=options.json)
    repository = HubRepository.requested(options)
    folder = resolve(name)
    old = modelfolder.inspect(folder)
    refuse_static(old.config, "extend", str(folder))
    if longformer and global_tokens is None:
        global_tokens = count_global_tokens(old.heads)
    longer = extend_config(old.config, max_positions, window, global_tokens)
    config, heads = _express_as_longformer(longer, old.heads) if longformer else (longer, old.heads)
    notes = _notes(old.config, config)
    if options.dry_run:
        console.result(f"would extend {folder}: {'; '.join(notes)}")
    else:
        output = new_output(options)
        carried = sentence_files(folder, old.config, positions=config.max_positions)
        loaded = modelfolder.load_model(folder)
        meta = FolderMeta(
            family=LONGFORMER if longformer else loaded.family,
            task=loaded.meta.task,
            label_names=loaded.meta.label_names,
            method=METHOD,
            lineage=(Parent(role="base", name=model_label(folder), fingerprint=modelfolder.fingerprint(folder)),),
            data=loaded.meta.data,
            language=loaded.meta.language,
            license=loaded.meta.license,
            notes=tuple(notes),
        )
        files = _tokenizer_files(loaded.tokenizer_files, max_positions, str(folder))
        model = extend(loaded.model, longer)
        if longformer:
            model = to_longformer(model, config, heads)
        modelfolder.save_model(output, model, tokenizer_files=files, meta=meta, beside=carried)
        made = modelfolder.inspect(output)
        console.result(f"wrote {output}: {'; '.join(notes)}")
        hint = HINT if config.windows is not None else ""
        console.result(f"it loads with {made.stock_class or NO_CLASS + hint}")
        console.note(
            "the weights are not trained for the new positions or the window yet: train the model on long texts"
        )
    document = {
        "folder": None if options.dry_run else str(options.output),
        "max_positions": {"before": old.config.max_positions, "after": config.max_positions},
        "windows": config.windows,
        "global_tokens": config.global_tokens,
        "new_parameters": config.count_parameters() - old.config.count_parameters(),
    }
    push_and_print(console, document, options.output, repository)
    return config


def _express_as_longformer(
    config: EncoderConfig, heads: Mapping[str, HeadConfig]
) -> tuple[EncoderConfig, dict[str, HeadConfig]]:
    """Raises UserError, with the reason, for a model that no Longformer class computes."""
    refuse_quantized(config, "writing it as Longformer", "--longformer")
    made, changed, do = config, dict(heads), "leave --longformer out: compress reads its own format"
    if config.windows is None:
        reason, do = "it has no window", "add --window"
    elif config.global_tokens != count_global_tokens(heads):
        reason = f"it has {config.global_tokens} global tokens; transformers' class for its head has"
        reason, do = f"{reason} {count_global_tokens(heads)}", "leave --global-tokens out"
    else:
        made, changed = longformer_config(config, heads)
        reason = load_families()[LONGFORMER].objection(made, changed)
    if reason is not None:
        raise UserError("no Longformer class computes this model", where="--longformer", why=reason, do=do)
    return made, changed


def _notes(old: EncoderConfig, new: EncoderConfig) -> list[str]:
    """What was done, for the card and the terminal."""
    notes = []
    if new.max_positions != old.max_positions:
        how = "the sinusoids are continued" if new.positions == "sinusoidal" else "the learned embeddings are repeated"
        notes.append(f"positions extended from {old.max_positions:,} to {new.max_positions:,}: {how}")
    if new.windows is not None and (new.windows, new.global_tokens) != (old.windows, old.global_tokens):
        widths = sorted({w for w in new.windows if w is not None})
        seen = f"every token attends to {' or '.join(f'{w:,}' for w in widths)} tokens on each side"
        firsts = f", and the first {new.global_tokens:,} have global attention" if new.global_tokens else ""
        notes.append(seen + firsts)
    if new.global_projections and not old.global_projections:
        notes.append("global tokens have projections of their own, initialized from those of the other tokens")
    if new.windows is None:
        notes.append("full attention: cost is quadratic in the length")
    return notes


def _tokenizer_files(files: Mapping[str, bytes], max_positions: int, where: str) -> dict[str, bytes]:
    """The tokenizer with the new longest text, which other tools read from its config."""
    made = dict(files)
    if _TOKENIZER in made:
        try:
            values = json.loads(made[_TOKENIZER])
        except ValueError as error:
            raise UserError("not valid JSON", where=f"{where}/{_TOKENIZER}", why=str(error)) from error
        if "model_max_length" in values:
            values["model_max_length"] = max_positions
            made[_TOKENIZER] = json.dumps(values, ensure_ascii=False, indent=2).encode()
    return made
