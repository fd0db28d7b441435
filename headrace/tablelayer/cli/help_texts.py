"""Commands as their help pages show them: N for a number, FILE and [TOPIC]... for arguments, and whole sentences."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from headrace.tablelayer.cli.options import config_option

_PLACEHOLDERS = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER", "str": "TEXT"}


def finish_command(command: Any) -> None:
    """Give a command, or all commands of a group, their placeholders, and `--config` if they connect to a server."""
    for each in getattr(command, "commands", {}).values():
        finish_command(each)
    if any(parameter.name == "server" for parameter in command.params):
        command.params.append(config_option())
    for parameter in command.params:
        choices = "|".join(map(str, getattr(parameter.type, "choices", ())))
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or (f"{{{choices}}}" if choices else parameter.name.upper())
            parameter.make_metavar = partial(_argument, parameter)
        elif parameter.metavar is None:
            parameter.metavar = choices or _PLACEHOLDERS.get(parameter.type.name)
    if command.help and not command.short_help:  # a list of commands would cut a sentence
        command.short_help = re.split(r"(?<=\.)\s|\n\n", command.help.strip(), maxsplit=1)[0].replace(
            "\n", " "
        )


def _argument(parameter: Any, ctx: Any, *, usage: bool = False) -> str:
    """Return the placeholder of an argument; in the first line, in brackets if it may be left out."""
    name: str = parameter.metavar
    if not usage:
        return name
    shown = name if parameter.required else f"[{name}]"
    return f"{shown}..." if parameter.nargs != 1 else shown
