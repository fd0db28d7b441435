"""`python -m mutants`: run the list of mutants or a part of it. Exit code 1 if one survives or an entry is invalid."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from mutants.entries import FOLDER, ROOT, InvalidMutantError, Mutant, load, parse, problems
from mutants.runner import Verdict, run

TIMEOUT_S = 180  # for one mutant; the slowest named tests take a tenth of it


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", help="only those whose name, file or tests match this regular expression"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of mutants that run at a time"
    )
    parser.add_argument(
        "--since", metavar="REV", help="only those whose file, tests or entry changed since this revision"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help="seconds for one mutant; a hang counts as killed"
    )
    asked = parser.parse_args()
    try:
        chosen = load()
        if asked.since:
            chosen = since(chosen, asked.since)
        if asked.only:
            pattern = re.compile(asked.only)
            chosen = [
                each for each in chosen if pattern.search("\n".join((each.name, each.file, *each.tests)))
            ]
        wrong = problems(chosen)
    except (InvalidMutantError, subprocess.CalledProcessError, re.error) as error:
        print(error, file=sys.stderr)
        return 1
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if not chosen:
        print("no mutant matches")
        return 0
    begin, verdicts = time.monotonic(), Counter[Verdict]()
    print(f"{len(chosen)} mutants; their tests run once without them first", flush=True)
    for number, outcome in enumerate(run(chosen, jobs=asked.jobs, timeout_s=asked.timeout), 1):
        verdicts[outcome.verdict] += 1
        line = f"{number:4} {outcome.verdict.value:8} {outcome.seconds:6.1f} s  {outcome.mutant.name}"
        print(line if outcome.good else f"{line}\n    {outcome.detail.strip()}", flush=True)
    counts = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict)
    print(f"{len(chosen)} mutants: {counts}, in {time.monotonic() - begin:.0f} s")
    return int(bool(verdicts[Verdict.SURVIVED] or verdicts[Verdict.ERROR]))


def since(mutants: Sequence[Mutant], revision: str) -> list[Mutant]:
    """Return the mutants that are new or changed, or whose file or test files are, against a revision."""
    changed = set(_git("diff", "--name-only", revision, "--").splitlines())
    changed |= set(_git("ls-files", "--others", "--exclude-standard").splitlines())
    known: set[Mutant] = set()
    for name in _git("ls-tree", "--name-only", revision, f"{FOLDER.name}/").splitlines():
        if name.endswith(".toml"):
            known |= set(parse(_git("show", f"{revision}:{name}"), name))
    return [each for each in mutants if each not in known or {each.file, *each.test_files} & changed]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
