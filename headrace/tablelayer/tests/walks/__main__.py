"""Trace the requests of `docs/internals/walks.md`, write its numbers again, and print other differences.

`--calls`: print all calls of each instead, and write nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headrace.tablelayer.tests.walks import document as told
from headrace.tablelayer.tests.walks.requests import trace_requests


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        traces = trace_requests(Path(directory))
    if sys.argv[1:] == ["--calls"]:
        for name, calls in traces.items():
            print(f"\n{name}\n")
            for call in calls:
                loop = calls[0].thread
                where = "  " if call.thread == loop else "| "
                print(f"{where}{'  ' * call.depth}`{call.path}` `{call.function}`{' goes on' * call.resumed}")
        return 0
    text = told.DOCUMENT.read_text()
    written = told.renewed(text, {name: told.length(calls) for name, calls in traces.items()})
    told.DOCUMENT.write_text(written)
    document = told.Document.parse(written)
    wrong = [f"cannot be read: {line}" for line in document.unread]
    for name, calls in traces.items():
        if step := told.first_false_step(document.walks.get(name, []), calls):
            wrong.append(f"{name}: `{step[0]}` `{step[1]}` is not called after the steps before it")
        wrong += [
            f"{name}: `{path}` is passed, and not told" for path in told.not_told(document, name, calls)
        ]
    passed = {call.path for calls in traces.values() for call in calls}
    wrong += [f"`{path}` helps no request" for path in document.helpers if path not in passed]
    wrong += [f"picture: no walk goes {one} -> {other}" for one, other in told.arrows_not_walked(document)]
    print("\n".join(wrong) or "all steps are true")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
