"""Run mutants against their tests and report which survive.

The named tests run first on the unchanged copy: a test that fails there proves nothing. Then each mutant's tests run
until the first failure. A test that fails in its body, or that hangs, kills the mutant. The entry is an error, not a
defect, if the tests cannot be collected, if a fixture fails, or if the failure is a missing name or import.
"""

from __future__ import annotations

import enum
import queue
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from mutants.entries import InvalidMutantError, Mutant
from mutants.workspace import Workspace

_FAILED: Final = re.compile(r"^FAILED |^\d+ failed|, \d+ failed", re.MULTILINE)
_NO_DEFECT: Final = re.compile(
    r"^E +((?:\w+\.)*(?:NameError|ImportError|ModuleNotFoundError|SyntaxError|UnboundLocalError)\b.*)$",
    re.MULTILINE,
)
_TEST_FAILED: Final = 1  # pytest's exit codes


class Verdict(enum.Enum):
    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "SURVIVED"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    verdict: Verdict
    seconds: float
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.verdict in (Verdict.KILLED, Verdict.HUNG)


def run(mutants: Sequence[Mutant], *, jobs: int, timeout_s: float) -> Iterator[Outcome]:
    """Yield one outcome for each mutant, in the order of completion.

    `timeout_s` is for one mutant; a mutant of kernels has five times of it.
    """
    with ExitStack() as stack:
        spaces: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        for _ in range(jobs):
            spaces.put(stack.enter_context(Workspace()))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)

        @contextmanager
        def borrowed() -> Iterator[Workspace]:
            space = spaces.get()
            try:
                yield space
            finally:
                spaces.put(space)

        def unmutated(tests: Sequence[str]) -> str:
            with borrowed() as space:
                done = space.pytest(tests, timeout_s * 5)
            return "" if done.code == 0 else f"its tests fail without it:\n{_tail(done.output)}"

        def mutated(mutant: Mutant) -> Outcome:
            begin = time.monotonic()
            with borrowed() as space:
                verdict, detail = _verdict(space, mutant, timeout_s)
            return Outcome(mutant, verdict, time.monotonic() - begin, detail)

        by_file: dict[str, set[str]] = defaultdict(set)
        for mutant in mutants:
            for test in mutant.tests:
                by_file[test.partition("::")[0]].add(test)
        checks = {file: pool.submit(unmutated, sorted(tests)) for file, tests in by_file.items()}
        failing = {file: detail for file, check in checks.items() if (detail := check.result())}
        futures: list[Future[Outcome]] = []
        for mutant in mutants:
            bad = sorted(mutant.test_files & failing.keys())
            if bad:
                yield Outcome(mutant, Verdict.ERROR, 0, failing[bad[0]])
            else:
                futures.append(pool.submit(mutated, mutant))
        for future in as_completed(futures):
            yield future.result()


def _verdict(space: Workspace, mutant: Mutant, timeout_s: float) -> tuple[Verdict, str]:
    limit = timeout_s * 5 if space.has_kernels(mutant) else timeout_s
    try:
        with space.mutated(mutant):
            done = space.pytest(mutant.tests, limit)
    except InvalidMutantError as error:
        return Verdict.ERROR, str(error)
    if done.code is None:
        return Verdict.HUNG, ""
    if done.code == 0:
        return Verdict.SURVIVED, mutant.promise
    if done.code != _TEST_FAILED or not _FAILED.search(done.output):
        return Verdict.ERROR, f"no test failed, pytest itself or a fixture did:\n{_tail(done.output)}"
    if no_defect := _NO_DEFECT.search(done.output):
        return Verdict.ERROR, f"the replacement does not run: {no_defect[1]}"
    return Verdict.KILLED, ""


def _tail(output: str, lines: int = 15) -> str:
    return "\n".join(f"    {line}" for line in output.strip().splitlines()[-lines:])
