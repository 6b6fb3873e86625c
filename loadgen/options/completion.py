"""Write the script with which a shell completes a command's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from loadgen.options.declare import OptionField

Shell = Literal["bash", "zsh"]

_SCRIPT = """\
_complete_{name}() {{
    local word command="" current="${{COMP_WORDS[COMP_CWORD]}}"
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        case "$word" in {commands}) command="$word"; break ;; esac
    done
    case "$command:${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    case "$command:$current" in
{flags}
        :*) [[ "${{COMP_WORDS[COMP_CWORD-1]}}" == -* ]] || COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;
    esac
}}
complete -o default -F _complete_{name} {name}
"""
"""If it offers nothing, the shell completes files (`-o default`). zsh, whose bash emulation runs it too, has no
`mapfile`, and reads `:1:COMP_CWORD` as a modifier."""

_FOR_ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
autoload -U bashcompinit && bashcompinit
"""


def completion_script(name: str, command: Any, declared: Mapping[str, OptionField], shell: Shell) -> str:
    """Return the script for bash, or for zsh, which runs it as bash does.

    `command` is what typer makes of the app, with its subcommands; the values of options are those of `declared`.
    """
    subcommands = getattr(command, "commands", {})
    values = [
        f'        :{one.flag}) COMPREPLY=($(compgen -W "{" ".join(one.choices)}" -- "$current")); return ;;'
        for one in declared.values()
        if one.choices
    ]
    flags = [
        f'        {title}:-*) COMPREPLY=($(compgen -W "{" ".join(_flags(one))}" -- "$current")) ;;'
        for title, one in (("", command), *subcommands.items())
    ]
    script = _SCRIPT.format(
        name=name,
        commands="|".join(subcommands) or '""',
        values="\n".join(values),
        flags="\n".join(flags),
        words=" ".join(subcommands),
    )
    return script if shell == "bash" else _FOR_ZSH + script


def _flags(command: Any) -> list[str]:
    found = (flag for parameter in command.params for flag in parameter.opts if flag.startswith("--"))
    return sorted({*found, "--help"})
