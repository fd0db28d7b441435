"""One broker process of `headrace serve --processes N`. The supervisor starts it, and it ends with the supervisor.

Arguments: `serve`, the number of the descriptor of its end of the pair, the supervisor's process id, and its options in
JSON.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import msgspec

from headrace.tablelayer.cli import STARTED
from headrace.tablelayer.cli.errors import explain
from headrace.tablelayer.cli.process import begin, end_with
from headrace.tablelayer.cli.process_plan import ProcessOptions
from headrace.tablelayer.cli.streams import finish, prepare


def main() -> int:
    """Return the exit code."""
    begin()
    prepare()
    _, descriptor, parent, text = sys.argv[1:]
    end_with(int(parent))
    options = msgspec.json.decode(text, type=ProcessOptions)
    from headrace.tablelayer.cli.serve import serve

    try:
        serve(
            options.listen,
            Path(options.data),
            options.sets,
            None if options.config is None else Path(options.config),
            metrics=options.metrics,
            log_format=options.log_format,
            verbose=options.verbose,
            started=STARTED,
            coordinator=socket.socket(fileno=int(descriptor)),
        )
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        sys.stderr.write(f"broker {options.broker_id}: {sentence}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(finish(main()))
