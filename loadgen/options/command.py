"""Make a typer command of declared options, and the script with which a shell completes them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from importlib.resources import files
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any

import typer

from loadgen.errors import BadInput, Interrupted
from loadgen.options.declare import OptionField
from loadgen.options.sources import (
    Origin,
    Origins,
    given_in_environment,
    given_in_file,
    take_variables,
    value_of,
    with_origin,
)

Values = Mapping[str, Any]
"""The value of every option by its name, as its flag gives it."""


def command_from(
    command: str,
    declared: Mapping[str, OptionField],
    run: Callable[[Values, Origins], None],
    *,
    short: bool = False,
) -> Callable[..., None]:
    """Return the function that typer takes: its parameters are the options, its help is that of `run`.

    With `short`, `--help` shows the common options alone, and `--help-all` all of them. `run` is not called before
    a subcommand; the environment is cleared of the options' variables in any case.
    """

    def called(context: typer.Context, **flags: Any) -> None:
        del flags  # they are in the context, with their origins
        variables = take_variables(os.environ, command)
        asked = {} if context.obj is None or context.parent is not None else context.obj  # for an error
        if context.invoked_subcommand is not None:
            asked["json"] = False
            return
        asked.update(context.params)
        values, origins = read_options(command, declared, context, variables)
        asked.update(values)
        try:
            run(values, origins)
        except BadInput as error:
            raise with_origin(error, declared, origins) from error
        except KeyboardInterrupt as error:  # typer would end without a word
            raise Interrupted("Stopped.", "") from error

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [_parameter(one, hidden=short and not one.common) for one in declared.values()]
    if short:
        all_of_them = inspect.Parameter(
            "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HELP_ALL
        )
        parameters.append(all_of_them)
    called.__doc__ = run.__doc__
    called.__name__ = run.__name__
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def read_options(
    command: str, declared: Mapping[str, OptionField], context: typer.Context, variables: Mapping[str, str]
) -> tuple[Values, Origins]:
    """Return the values of the options, and the origins of those that were given. Raises BadInput.

    `variables` are those that `take_variables` returns; the file is the one that `--config` names.
    """
    values = {
        name: tuple(context.params[name] or ()) if one.repeatable else context.params[name]
        for name, one in declared.items()
    }
    sources = {name: context.get_parameter_source(name) for name in declared}
    flags = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    origins = {name: Origin(kind="flag", place=declared[name].flag) for name in flags}
    path: Path | None = context.params.get("config")
    alone = next((declared[name].flag for name in flags if declared[name].alone), None)
    if alone is not None:
        if path is not None:
            raise BadInput(f"--config {path} cannot be combined with {alone}.", "Leave one of them out.")
        return values, origins
    given = {} if path is None else given_in_file(command, declared, path)
    given |= given_in_environment(command, declared, variables, os.environ)
    for name, one in given.items():
        converted = value_of(declared[name], one)
        if name not in origins:
            values[name], origins[name] = converted, one.origin
    return values, origins


def _show_all(context: typer.Context, given: bool) -> None:
    """Print the help with all options, and leave."""
    if given:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = Annotated[
    bool, typer.Option("--help-all", help="Show all options and leave.", is_eager=True, callback=_show_all)
]


def _parameter(one: OptionField, *, hidden: bool) -> inspect.Parameter:
    """Return the option as a parameter that typer understands."""
    if one.argument:
        info = typer.Argument(help=one.help, metavar=one.metavar)
    else:
        letter = () if one.letter is None else (one.letter,)
        names = (one.flag, *letter) if one.kind is bool else ()  # without a name typer adds --no-NAME
        info = typer.Option(
            *names,
            help=one.help,
            metavar=one.metavar,
            rich_help_panel=one.panel,
            envvar=one.variable,
            hidden=hidden,
        )
    kind: Any = GenericAlias(list, one.kind) if one.repeatable else one.kind
    default = None if one.repeatable else one.default
    if one.argument and (one.usual is MISSING or one.default == ()):
        default = inspect.Parameter.empty  # typer asks for it
    elif default is None:
        kind = kind | None
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def completion_script(name: str, command: Any, declared: Mapping[str, OptionField], shell: str) -> str:
    """Return the script for bash, or for zsh, which runs it as bash does.

    `command` is what typer makes of the app, with its subcommands; the values of options are those of `declared`.
    """
    from jinja2 import Environment

    subcommands = getattr(command, "commands", {})
    flags = {
        title: sorted({"--help", *(flag for part in one.params for flag in part.opts if flag.startswith("--"))})
        for title, one in {"": command, **subcommands}.items()
    }
    text = files("loadgen.options").joinpath("templates", "completion.sh.j2").read_text(encoding="utf-8")
    template = Environment(trim_blocks=True, keep_trailing_newline=True).from_string(text)  # noqa: S701 - no HTML
    return template.render(name=name, subcommands=subcommands, options=declared.values(), flags=flags, shell=shell)
