"""The output of the examples in the terminal: timed steps, tables, checks, and a summary with an exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""An example's JVMs live for seconds, too short for the optimising compiler to pay off."""


class StepFailedError(Exception):
    """A step cannot go on; the message is for the person watching."""


@dataclass
class Check:
    """One promise, kept or not."""

    text: str
    kept: bool
    detail: str = ""


@dataclass
class Stage:
    """Prints as it goes and remembers every check."""

    title: str
    console: Console = field(default_factory=Console)
    checks: list[Check] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def run(self, steps: Iterable[tuple[str, Callable[[], object]]], close: Callable[[], object]) -> int:
        """The steps in their order, until one cannot go on; the exit code. `close` ends what they have started,
        whatever happens, SIGTERM too.
        """
        signal.signal(signal.SIGTERM, _end)
        os.environ.setdefault("JDK_JAVA_OPTIONS", _SHORT_LIVED_JVM)
        try:
            for title, work in steps:
                with self.step(title):
                    work()
        except StepFailedError as error:
            self.fail(error)
        finally:
            close()
        return self.summary()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A titled, timed part. An exception in it fails the run, with what was said shown."""
        name = f"{len(self.times) + 1}. {title}"
        self.console.rule(f"[bold]{escape(name)}", align="left", style="cyan")
        begun = time.monotonic()
        try:
            yield
        except StepFailedError:
            raise
        except Exception as error:
            self.console.print(f"[dim]{escape(traceback.format_exc())}")
            raise StepFailedError(f"{type(error).__name__}: {str(error).strip()[:2000]}") from error
        finally:
            seconds = time.monotonic() - begun
            self.times.append((name, seconds))
            since_start = time.monotonic() - self.started
            self.console.print(f"[dim]{seconds:.1f} s, {since_start:.0f} s since the start\n")

    def say(self, text: str) -> None:
        """One line. Rich markup is allowed; escape what comes from outside."""
        self.console.print(f"  {text}", highlight=False)

    def command(self, words: Sequence[str]) -> None:
        """A command as a person would type it."""
        self.console.print(f"  [bold green]$[/] {escape(' '.join(words))}", highlight=False)

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
        """A table; None is shown as a dash."""
        table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*["-" if value is None else escape(str(value)) for value in row])
        self.console.print(table)

    def check(self, text: str, kept: bool, detail: str = "") -> bool:
        """Record and print a promise; `detail` says what was seen."""
        self.checks.append(Check(text, kept, detail))
        mark = "[bold green]✓[/]" if kept else "[bold red]✗[/]"
        more = f" [dim]({escape(detail)})[/]" if detail else ""
        self.console.print(f"  {mark} {escape(text)}{more}", highlight=False)
        return kept

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Any]:
        """A bar; yields a function that takes how many are done."""
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=not self.console.is_terminal) as bar:
            task = bar.add_task(text, total=total)
            yield lambda done: bar.update(task, completed=done)

    def fail(self, error: StepFailedError) -> None:
        """Record that the run broke off."""
        self.check("the run goes to its end", False, str(error))

    def summary(self) -> int:
        """Print times and checks; the exit code: 0 only if there are checks and all hold."""
        self.console.rule(f"[bold]{escape(self.title)}", style="cyan")
        self.rows(["step", "seconds"], [(name, f"{seconds:.1f}") for name, seconds in self.times])
        for check in self.checks:
            mark = "[bold green]✓[/]" if check.kept else "[bold red]✗[/]"
            self.console.print(f"{mark} {escape(check.text)}", highlight=False)
        broken = sum(not check.kept for check in self.checks)
        seconds = time.monotonic() - self.started
        if broken or not self.checks:
            count = len(self.checks)
            self.console.print(f"\n[bold red]{broken} of {count} checks failed[/] after {seconds:.0f} s")
            return 1
        self.console.print(f"\n[bold green]all {len(self.checks)} checks hold[/], {seconds:.0f} s in all")
        return 0


def _end(number: int, _: FrameType | None) -> None:
    """End like Ctrl-C."""
    sys.exit(128 + number)
