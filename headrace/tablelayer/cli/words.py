"""Argument parsing and confirmation that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from headrace.tablelayer.cli.errors import CommandError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]


def named_values(texts: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Parse `name=value` texts. Raises CommandError for another form, and for a name with two values."""
    values: dict[str, str] = {}
    for name, value in named_pairs(texts, option):
        if values.setdefault(name, value) != value:
            raise CommandError(f"{option} gives {name!r} two values: {values[name]!r} and {value!r}".lstrip())
    return values


def named_pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Parse `name=value` texts in order; a name may occur again. Raises CommandError for another form."""
    pairs = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise CommandError(f"{option} {text!r} is not of the form name=value".lstrip())
        pairs.append((name.strip(), value))
    return pairs


def moment_of(text: str, option: str = "--at") -> int:
    """Parse a moment in milliseconds, or a date and time (default UTC), to milliseconds. Raises CommandError."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option} {text!r} is not a time: write 2024-09-19T12:00:00, or milliseconds since 1970"
        ) from None
    time_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return time_ms if time_ms >= 0 else _EARLIEST


_EARLIEST = -2
"""Kafka's sign of the beginning of a log. A time before 1970 would be such a sign, perhaps that of the end."""


def topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """Parse `clicks` or `clicks:0,2`; None: all partitions. Raises CommandError."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.strip().isdecimal() for part in parts):
        raise CommandError(f"--topic {text!r} is not of the form TOPIC or TOPIC:PARTITION,PARTITION")
    return topic, [int(part) for part in parts]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 topic, 2 topics."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on the terminal unless `yes`. A negative answer ends the command."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
