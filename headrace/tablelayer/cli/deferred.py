"""Commands that are built from their functions only when they are asked for by name.

typer makes a parameter of every argument of every function before it looks at the command line, which takes a fifth of
the time of a short command. Names, help, completion and the error for an unknown name are those of typer's own tree,
which walks through all commands when it needs them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import typer
from typer.main import get_command_from_info, get_command_name, get_group, get_group_from_info


class DeferredCommands(Mapping[str, Any]):
    """Commands and groups of an app, in its order. `finish` is called with each one that is built."""

    def __init__(self, app: typer.Typer, finish: Callable[[Any], None]) -> None:
        self._finish = finish
        self._made: dict[str, Any] = {}
        self._makers: dict[str, Callable[[], Any]] = {}
        for command in app.registered_commands:
            assert command.callback is not None
            name = command.name or get_command_name(command.callback.__name__)
            self._makers[name] = partial(
                get_command_from_info,
                command,
                pretty_exceptions_short=app.pretty_exceptions_short,
                rich_markup_mode=app.rich_markup_mode,
            )
        for group in app.registered_groups:
            assert isinstance(group.name, str)
            self._makers[group.name] = partial(
                get_group_from_info,
                group,
                pretty_exceptions_short=app.pretty_exceptions_short,
                suggest_commands=app.suggest_commands,
                rich_markup_mode=app.rich_markup_mode,
            )

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            command = self._makers[name]()
            self._finish(command)
            self._made[name] = command
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def deferred(app: typer.Typer, finish: Callable[[Any], None]) -> Any:
    """Return the command of an app as `typer.main.get_command` does, but build its subcommands later."""
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = [], []
    group = get_group(alone)
    group.commands = DeferredCommands(app, finish)  # type: ignore[assignment]
    return group
