"""What a person reads when a command cannot do its work: one sentence on stderr, exit code 1.

Usage mistakes (an unknown option) are typer's and exit with 2. A defect of ours keeps its traceback: it must be seen.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from headrace.tablelayer.cli.options import config_option, version_option
from headrace.tablelayer.cli.streams import broken_output


class CommandError(Exception):
    """A command that cannot go on; its text is for the person."""


class Group(TyperGroup):
    """Turns expected errors of any command below it into a sentence and exit code 1, and gives `--config` to all that
    connect to a server."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.params.extend((version_option(), config_option(of_all=True)))
        for command in self.commands.values():
            give_config(command)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            if isinstance(error, OSError) and (broken := broken_output()) is not None:
                raise typer.Exit(0 if isinstance(broken, BrokenPipeError) else 1) from None
            sentence = explain(error)
            if sentence is None:
                raise
            typer.echo(sentence, err=True)
            raise typer.Exit(1) from None


def give_config(command: Any) -> None:
    """`--config` for a command that connects to a server, or for all such of a group."""
    for each in getattr(command, "commands", {}).values():
        give_config(each)
    if any(parameter.name == "server" for parameter in command.params):
        command.params.append(config_option())


def explain(error: Exception) -> str | None:
    """The sentence for an expected error, with the notes it carries; None for a defect."""
    why = error if isinstance(error, UnicodeEncodeError) else error.__cause__
    is_no_text = isinstance(why, UnicodeEncodeError) and why.reason == "surrogates not allowed"
    if is_no_text or "cannot encode str as UTF-8, surrogate" in str(error):  # as DuckDB says it
        return "what was typed has bytes that are no text in this locale: set LC_ALL=C.UTF-8, or another UTF-8 locale"
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if not names & _EXPECTED:
        return None
    lines = [str(error), *getattr(error, "__notes__", ())]
    return "\n".join(lines)


#: By name, so that the modules that define them need not be imported to know them.
_EXPECTED = frozenset(
    {
        "headrace.tablelayer.cli.errors.CommandError",
        "headrace.tablelayer.client.errors.ClientError",
        "headrace.tablelayer.model.errors.TableError",
        "headrace.protocol.errors.KafkaError",
        "headrace.broker.configs.config_key.ConfigError",
    }
)
