"""A fork is a process like another: its words, surroundings, streams, signals and exit status are its own."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import json, os, signal, sys, time
from simulator.fork_server import main

def run():
    if sys.argv[1] == "wait":
        print("waiting", flush=True)
        time.sleep(600)
    print("typed", sys.stdin.readline(), file=sys.stderr)
    descriptors = [each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
    told = {"words": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ), "parent": os.getppid()}
    print(json.dumps({**told, "descriptors": sorted(map(int, descriptors))}))
    sys.exit(int(sys.argv[1]))

main(lambda: run)
"""
Fork = Callable[..., int]


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer(CODE, ROOT)


def test_a_fork_has_what_it_is_given_and_nothing_else(server: ForkServer, tmp_path: Path) -> None:
    for code in (0, 3):
        given, out, err = (tmp_path / name for name in ("in", "out", "err"))
        given.write_text("ö\n")
        with given.open() as first, out.open("w") as second, err.open("w") as third:
            streams = [first.fileno(), second.fileno(), third.fileno()]
            child = server.fork(["it", str(code), "a b"], str(tmp_path), {"NAME": "ü"}, streams)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        told = json.loads(out.read_text())
        assert err.read_text() == "typed ö\n\n"
        assert told == {
            "words": ["it", str(code), "a b"],
            "folder": str(tmp_path),
            "environment": {"NAME": "ü"},
            "parent": os.getpid(),
            "descriptors": [0, 1, 2],
        }


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fork_ends_by_a_signal(server: ForkServer, tmp_path: Path, number: int) -> None:
    with Path(os.devnull).open("r+") as nothing:
        ours, its = os.pipe()
        streams = [nothing.fileno(), its, nothing.fileno()]
        child = server.fork(["it", "wait"], str(tmp_path), {}, streams)
        os.close(its)
    with os.fdopen(ours) as said:
        assert said.readline() == "waiting\n"
        os.kill(child, number)
        assert said.read() == ""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number


def test_a_server_that_cannot_fork_is_an_error(tmp_path: Path) -> None:
    threads = (
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    with pytest.raises(RuntimeError, match="the process that forks has ended"):
        ForkServer(threads + CODE, ROOT).fork(["it", "0"], str(tmp_path), {}, [0, 1, 2])
