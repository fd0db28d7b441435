"""Errors of a command for its user: one sentence on stderr, exit code 1.

Usage mistakes (an unknown option) are typer's and exit with 2. A defect of ours keeps its traceback, so that it is
noticed.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from headrace.tablelayer.cli.help_texts import finish_command
from headrace.tablelayer.cli.options import config_option, version_option
from headrace.tablelayer.cli.streams import broken_output


class CommandError(Exception):
    """A command cannot continue; the text is for the user."""


class Group(TyperGroup):
    """Command group that prints expected errors as one sentence, with exit code 1.

    Its commands are finished (`help_texts.finish_command`).
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.params.extend((version_option(), config_option(of_all=True)))
        for command in self.commands.values():
            finish_command(command)

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


def explain(error: Exception) -> str | None:
    """Return the sentence for an expected error, with its notes; None for a defect."""
    why = error if isinstance(error, UnicodeEncodeError) else error.__cause__
    is_no_text = isinstance(why, UnicodeEncodeError) and why.reason == "surrogates not allowed"
    if is_no_text or "cannot encode str as UTF-8, surrogate" in str(error):  # DuckDB's wording
        return "the input has bytes that are not text in this locale: set LC_ALL=C.UTF-8, or another UTF-8 locale"
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
        "headrace.tablelayer.spark.jars.SparkSetupError",
        "headrace.protocol.errors.KafkaError",
        "headrace.broker.configs.config_key.ConfigError",
    }
)
