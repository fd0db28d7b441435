"""The regular expressions of clients: over topic names (KIP-848) and transactional ids (KIP-1152).

Patterns come from untrusted clients, so only RE2 matches them, as Kafka uses RE2J: matching is linear in the text. As
in Kafka the whole text has to match, and `.` does not match a line break. Python's `re` backtracks, so it must never
get a client's pattern.

Compiling holds the interpreter's lock, so its cost is bounded beforehand (`PATTERN_BYTES_MAX`, `CATEGORIES_MAX`: about
five milliseconds at most). Matching releases the lock. `matching` runs it in a thread, in slices, so that one client
occupies neither the event loop nor the threads. `MEMORY_BYTES_MAX` bounds the memory of each pattern; the library keeps
the 128 patterns that were used last.

One difference from RE2J: two groups of the same name are accepted. Groups mean nothing here and are not captured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from headrace.broker.runtime.ports import Clock

PATTERN_BYTES_MAX = 2_048
CATEGORIES_MAX = 8
"""Maximum number of Unicode categories (`\\pL`) in a pattern. RE2 expands each to hundreds of ranges, in 0.2 ms."""
MEMORY_BYTES_MAX = 256 * 1024
"""Maximum number of bytes of program and deterministic states together (RE2's `max_mem`)."""
PROGRAM_SIZE_MAX = 4_000
"""Maximum number of instructions. If the deterministic states do not fit, RE2 may look at each instruction for each
character.
"""
SLICE_SECONDS = 0.005
"""Seconds that one turn in a thread matches before other work gets the thread."""


class PatternError(ValueError):
    """The pattern is invalid or too large. The text says why, in RE2's words."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_regexp",)

    def __init__(self, regexp: Any) -> None:
        self._regexp = regexp

    def matches(self, text: str) -> bool:
        """Return whether the whole of `text` matches."""
        return self._regexp.fullmatch(text) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern, or return the cached one. Raises PatternError."""
    import re2  # imported here, because it takes ten milliseconds

    size = len(pattern.encode(errors="surrogatepass"))
    if size > PATTERN_BYTES_MAX:
        raise PatternError(f"it has {size} bytes; the maximum is {PATTERN_BYTES_MAX}")
    categories = pattern.count("\\p") + pattern.count("\\P")
    if categories > CATEGORIES_MAX:
        raise PatternError(f"it names {categories} Unicode categories; the maximum is {CATEGORIES_MAX}")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    try:
        regexp = re2.compile(pattern, options)
    except re2.error as error:
        problem = error.args[0]
        raise PatternError(
            problem.decode(errors="replace") if isinstance(problem, bytes) else problem
        ) from None
    except UnicodeEncodeError:
        raise PatternError("it is not valid Unicode") from None
    if regexp.programsize > PROGRAM_SIZE_MAX:
        raise PatternError(
            f"pattern too large: {regexp.programsize} instructions; the maximum is {PROGRAM_SIZE_MAX}"
        )
    return Pattern(regexp)


async def matching(pattern: str, texts: Sequence[str], executor: Executor, clock: Clock) -> list[str]:
    """Return those of `texts` that match, in their order. Raises PatternError.

    The event loop is never blocked, and a thread of `executor` is held for one slice at most.
    """
    loop = asyncio.get_running_loop()
    found: list[str] = []
    position = 0
    while True:
        position = await loop.run_in_executor(executor, _match_slice, pattern, texts, position, found, clock)
        if position >= len(texts):
            return found


def _match_slice(pattern: str, texts: Sequence[str], position: int, found: list[str], clock: Clock) -> int:
    """Match from `position` on for `SLICE_SECONDS`; return the matches and where to continue."""
    compiled = compile_pattern(pattern)
    until = clock.monotonic() + SLICE_SECONDS
    while position < len(texts):
        text = texts[position]
        if compiled.matches(text):
            found.append(text)
        position += 1
        if clock.monotonic() > until:
            break
    return position
