"""What users of other tools type, and what they are told."""

from __future__ import annotations

from compress.cli._words import COMMANDS, FLAGS, command_meant, flag_meant, why_not
from compress.cli.main import cli


def test_flags_of_other_tools_are_those_of_the_command_alone() -> None:
    known = ("--batch-size", "--epochs")
    assert flag_meant("--per_device_train_batch_size", known) == "--batch-size"
    assert flag_meant("--Num-Epochs", known) == "--epochs"
    assert flag_meant("--batch_size", known) == "--batch-size"
    assert flag_meant("--max-seq-length", known) is None
    assert flag_meant("--no-such", known) is None


def test_a_training_flag_is_explained_where_nothing_is_trained() -> None:
    assert why_not("--num_epochs", "prune-vocab") == "prune-vocab trains no model; remove --num_epochs"
    assert why_not("--temperature", "finetune") == (
        "finetune trains without a teacher; remove --temperature, or use compress distill"
    )
    for name, command in (
        ("--epochs", "distill"),
        ("--temperature", "distill"),
        ("--data", "tokenizer"),
        ("--lr", None),
    ):
        assert why_not(name, command) is None


def test_commands_of_other_tools_exist_here() -> None:
    assert command_meant("Fine_Tune") == "did you mean 'finetune'?"
    assert command_meant("prune") == "did you mean 'prune-layers', 'prune-width' or 'prune-vocab'?"
    assert command_meant("bake") is None
    names = set(cli.list_commands(None))  # type: ignore[arg-type]
    assert names.issuperset(name for found in COMMANDS.values() for name in found)
    assert not names & COMMANDS.keys(), "a command of ours is never taken for another tool's"
    assert not FLAGS.keys() & set(FLAGS.values())
