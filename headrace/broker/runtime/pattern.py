"""The regular expressions of clients: over topic names (KIP-848) and transactional ids (KIP-1152).

Patterns are written by strangers, so they are RE2's alone, as Kafka's are RE2J's: matching is linear in the text.
As in Kafka the whole text has to match, and `.` does not match a line break. Python's `re`, which backtracks, must
never see a pattern of a client.

Compiling keeps the interpreter's lock, so what it may cost is bounded before (`PATTERN_BYTES_MAX`,
`CATEGORIES_MAX`: about five milliseconds at most). Matching gives the lock up; `matching` does it in a thread, in
slices, so that neither the event loop nor the threads are one client's. Memory is bounded by `MEMORY_BYTES_MAX` for
each pattern; the library keeps the 128 that were used last.

One difference from RE2J: two groups of one name are accepted. Groups mean nothing here and are not captured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from headrace.broker.runtime.ports import Clock

PATTERN_BYTES_MAX = 2_048
CATEGORIES_MAX = 8
"""Unicode categories (`\\pL`) in a pattern: RE2 makes a list of hundreds of ranges of each, in 0.2 ms."""
MEMORY_BYTES_MAX = 256 * 1024
"""Program and deterministic states together (RE2's `max_mem`)."""
PROGRAM_SIZE_MAX = 4_000
"""Instructions. Where the deterministic states do not fit, each may be looked at for each character of a text."""
SLICE_SECONDS = 0.005
"""How long one turn in a thread matches before others get it."""


class PatternError(ValueError):
    """The pattern is not one, or too large; the text says why, in RE2's words."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_regexp",)

    def __init__(self, regexp: Any) -> None:
        self._regexp = regexp

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches."""
        return self._regexp.fullmatch(text) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Raises PatternError. One that was compiled lately costs a look-up."""
    import re2  # not at each start: it takes ten milliseconds

    size = len(pattern.encode(errors="surrogatepass"))
    if size > PATTERN_BYTES_MAX:
        raise PatternError(f"it has {size} bytes; {PATTERN_BYTES_MAX} is the most")
    categories = pattern.count("\\p") + pattern.count("\\P")
    if categories > CATEGORIES_MAX:
        raise PatternError(f"it names {categories} Unicode categories; {CATEGORIES_MAX} is the most")
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
            f"pattern too large: {regexp.programsize} instructions; {PROGRAM_SIZE_MAX} is the most"
        )
    return Pattern(regexp)


async def matching(pattern: str, texts: Sequence[str], executor: Executor, clock: Clock) -> list[str]:
    """Those of `texts` that match, in their order. Raises PatternError.

    Nobody waits for it longer than for one slice: the event loop for none, the threads of `executor` for one.
    """
    loop = asyncio.get_running_loop()
    found: list[str] = []
    position = 0
    while True:
        position = await loop.run_in_executor(executor, _match_slice, pattern, texts, position, found, clock)
        if position >= len(texts):
            return found


def _match_slice(pattern: str, texts: Sequence[str], position: int, found: list[str], clock: Clock) -> int:
    """Match from `position` on for `SLICE_SECONDS`; gives where to go on."""
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
