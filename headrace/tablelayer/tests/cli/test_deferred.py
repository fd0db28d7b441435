"""Commands that are built on demand equal typer's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main

from headrace.tablelayer.cli.deferred import deferred
from headrace.tablelayer.cli.help_texts import finish_command
from headrace.tablelayer.cli.main import app


def shapes(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the words that a user can type, and their help texts."""
    parameters = [
        (each.name, tuple(each.opts), type(each.type).__name__, each.required, getattr(each, "help", None))
        for each in command.params
    ]
    yield path, command.name, command.help, command.hidden, parameters
    for name, below in getattr(command, "commands", {}).items():
        yield from shapes(below, (*path, name))


def test_the_tree_is_the_one_that_is_made_at_once() -> None:
    found = list(shapes(deferred(app, finish_command)))
    assert found == list(shapes(typer.main.get_command(app)))
    assert len(found) > 40


def helps(command: Any, context: Any = None) -> Iterator[str]:
    own = command.make_context(command.name or "headrace", [], parent=context, resilient_parsing=True)
    yield command.get_help(own)
    for below in getattr(command, "commands", {}).values():
        yield from helps(below, own)


def test_help_pages_have_plain_placeholders_and_whole_sentences() -> None:
    texts = list(helps(typer.main.get_command(app)))
    assert len(texts) > 40
    for text in texts:
        usage, _, rest = text.partition("\n")
        assert not re.search(r"<|\{\w+\}", usage), usage
        assert not re.search(r"(?m)  <|\w\.\.\.$", rest), text
    (lookup,) = (each for each in texts if " lookup " in each.partition("\n")[0])
    assert lookup.startswith("Usage: headrace tables lookup [OPTIONS] DATABASE.TABLE KEY...\n")


@pytest.mark.parametrize(
    ("words", "made", "shown"),
    [
        (("one",), ["one"], "one\n"),
        (("more", "two"), ["more"], "two\n"),
        (("on",), [], "Did you mean 'one'?"),
        (("--help",), ["one", "other", "more"], "\n  other"),
    ],
)
def test_only_the_typed_command_is_built(
    words: tuple[str, ...], made: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app, more, finished = typer.Typer(rich_markup_mode=None), typer.Typer(), list[str]()
    app.add_typer(more, name="more")
    for each, name in ((app, "one"), (app, "other"), (more, "two"), (more, "three")):
        each.command(name)(lambda name=name: typer.echo(name))
    command = deferred(app, lambda each: finished.append(each.name))
    with pytest.raises(SystemExit):
        command(list(words), prog_name="tool")
    assert finished == made
    told = capsys.readouterr()
    assert shown in told.out + told.err
