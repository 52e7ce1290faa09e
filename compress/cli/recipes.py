"""List, show, copy and validate recipes, and print their JSON schema."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from compress.cli._types import RecipeName
from compress.cli.main import debug_option
from compress.errors import ExitCode, UserError, nearest


class Verbs(click.Group):
    """The group's own commands, with the nearest one named when a word is none of them."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args[0] not in self.commands and not args[0].startswith("-"):
            near = nearest(args[0], self.commands)
            hint = f"did you mean '{near}'?" if near else f"known: {', '.join(self.commands)}"
            raise click.UsageError(f"no such command '{args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs)
def command() -> None:
    """List, show, copy and validate recipes: YAML files that name the data, the stages and the evaluation.

    \b
      compress recipes show distilbert --resolved

    RECIPE is the name of a shipped recipe or the path of your own file.
    """


@command.command("list", short_help="List the shipped recipes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@debug_option
def list_(as_json: bool) -> None:
    """List the shipped recipes; experimental ones, without a measured gain, come last."""
    from compress.console import Console
    from compress.recipe import list_recipes

    entries = list_recipes()
    console = Console(json=as_json)
    rows = [[e.name, e.method, f"{'experimental: ' if e.experimental else ''}{e.description}"] for e in entries]
    console.table("", ["recipe", "method", "what it does"], rows)
    console.document([{**dataclasses.asdict(e), "path": str(e.path)} for e in entries])


@command.command()
@click.argument("recipe", type=RecipeName())
@click.option("--resolved", is_flag=True, help="Resolve `extends` and all defaults, as the recipe would run.")
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set a value first (with --resolved).")
@debug_option
def show(recipe: str, resolved: bool, set_: tuple[str, ...]) -> None:
    """Print a recipe."""
    from compress.console import Console
    from compress.recipe import find_recipe, load_recipe, parse_override

    Console().listen()
    if set_ and not resolved:
        raise UserError("only applies with --resolved", where="--set", do="add --resolved")
    if resolved:
        text = load_recipe(recipe, [parse_override(s) for s in set_]).dump_yaml()
    else:
        text = _read(find_recipe(recipe))
    click.echo(text, nl=False)


@command.command()
@click.argument("recipe", type=RecipeName())
@click.argument("target", required=False, type=click.Path(path_type=Path))
@debug_option
def copy(recipe: str, target: Path | None) -> None:
    """Copy a recipe to edit it.

    TARGET is a file or a folder (default: a file of the same name in the working directory).
    """
    from compress.recipe import find_recipe
    from compress.storage.atomic import write_text

    source = find_recipe(recipe)
    target = target or Path(source.name)
    if target.is_dir():
        target = target / source.name
    if target.exists():
        raise UserError(f"{target} exists already", do="name another file", code=ExitCode.REFUSED)
    if not target.parent.is_dir():
        raise UserError(
            f"folder {target.parent} does not exist", where="TARGET", do="create it first, or name another folder"
        )
    write_text(target, _read(source))
    named = target if target.is_absolute() or len(target.parts) > 1 else f"./{target}"
    click.echo(f"{named}")


@command.command()
@click.argument("recipes", nargs=-1, type=RecipeName())
@debug_option
def validate(recipes: tuple[str, ...]) -> int:
    """Check recipes without running them (default: all shipped ones)."""
    from compress.console import Console
    from compress.recipe import load_recipe
    from compress.recipe.library import names

    Console().listen()
    worst = ExitCode.OK
    for name in recipes or names():
        try:
            recipe = load_recipe(name)
        except UserError as error:
            click.echo(f"error: {error.line()}", err=True)
            worst = error.code
        else:
            kinds = " → ".join(stage.kind for stage in recipe.stages)
            click.echo(f"{name}: valid, {kinds}")
    return worst


@command.command()
@debug_option
def schema() -> None:
    """Print the JSON schema of a recipe, for completion in an editor."""
    import json

    from compress.recipe import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _read(path: Path) -> str:
    """The text of a recipe that parses as far as being YAML."""
    from compress.recipe.document import read
    from compress.recipe.library import format_path

    read(path, format_path(path))
    return path.read_text(encoding="utf-8-sig")
