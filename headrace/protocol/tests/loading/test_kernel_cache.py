"""Kernels where numba may write neither beside the source nor into the user's cache."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from numba import njit
from numba.core.caching import IndexDataCacheFile

from headrace.protocol.loading.kernel_cache import one_writer, without_modules

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import errno, os, sys, tempfile
from pathlib import Path

allowed, keeps = Path(sys.argv[1]), sys.argv[2]
plain = tempfile.TemporaryFile

def without_room(*arguments, dir=None, **named):  # a read-only file system, also for root
    if dir is not None and allowed not in (Path(dir), *Path(dir).parents):
        raise OSError(errno.EROFS, "Read-only file system")
    return plain(*arguments, dir=dir, **named)

tempfile.TemporaryFile = without_room
from headrace.protocol.loading.kernel_cache import keep_kernels
if keeps == "given":
    assert keep_kernels(allowed / "kernels") == allowed / "kernels"
elif keeps == "none":
    tempfile.tempdir = str(allowed)
    assert keep_kernels().parent == allowed
elif keeps == "memory":
    from headrace.protocol.loading import kernel_cache
    assert kernel_cache._MEMORY == "/dev/shm"
    kernel_cache._MEMORY = str(allowed)
    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
    tempfile.gettempdir = nowhere
    assert keep_kernels().parent == allowed
from headrace.protocol.records.kernels import frozen
import headrace.protocol.records.gather as gather
print(os.environ.get("NUMBA_CACHE_DIR", ""))
"""


def run(folder: Path, keeps: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), keeps],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        check=False,
    )


def test_without_a_cache_folder_numba_raises(tmp_path: Path) -> None:
    answer = run(tmp_path, "nothing")
    assert answer.returncode == 1
    assert "no locator available" in answer.stderr


def test_a_configured_folder_keeps_compiled_kernels(tmp_path: Path) -> None:
    answer = run(tmp_path, "given")
    assert answer.returncode == 0, answer.stderr
    folder = tmp_path / "kernels"
    assert answer.stdout.strip() == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    compiled = {
        path.name for path in (ROOT / "headrace" / "protocol" / "records" / "__pycache__").glob("*.nb[ic]")
    }
    (copied,) = (each for each in folder.iterdir() if each.name.startswith("records_"))
    assert {path.name for path in copied.iterdir()} >= compiled


def test_without_a_temporary_folder_kernels_are_kept_in_memory(tmp_path: Path) -> None:
    """The case of a container with a read-only root and no tmpfs at /tmp."""
    answer = run(tmp_path, "memory")
    assert answer.returncode == 0, answer.stderr
    assert Path(answer.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir()), "it goes with the process"


def test_another_user_of_an_image_has_its_compiled_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    kernel = image / "numba" / "records_0" / "gather.nbi"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(image))
    (tmp_path / "data").mkdir()
    answer = run(tmp_path / "data", "given")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "data" / "kernels" / "records_0" / "gather.nbi").read_bytes() == b"compiled"


def test_without_any_folder_kernels_last_as_long_as_the_process(tmp_path: Path) -> None:
    answer = run(tmp_path, "none")
    assert answer.returncode == 0, answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_that_save_kernels_of_one_function_at_a_time_keep_both(tmp_path: Path) -> None:
    one_writer()
    first, second = (IndexDataCacheFile(str(tmp_path), "f", "stamp") for _ in range(2))
    (tmp_path / "f.1.nbc").write_bytes(b"of older sources")
    other = threading.Thread(target=second.save, args=("for floats", "code for floats"))
    plainly = first._save_index

    def slowly(overloads: dict[str, str]) -> None:
        assert not (tmp_path / "f.1.nbc").exists()
        other.start()
        other.join(0.3)
        plainly(overloads)

    first._save_index = slowly
    first.save("for ints", "code for ints")
    other.join()
    for each in (first, second):
        assert each.load("for ints") == "code for ints"
        assert each.load("for floats") == "code for floats"


IN_BETWEEN = """
import builtins, sys, threading, time

failures = []

def begin():
    try:
        from headrace.protocol.loading.kernel_cache import one_writer
        one_writer()
    except BaseException as error:
        failures.append(error)

def waits():
    frame = sys._current_frames().get(other.ident)
    return frame is not None and frame.f_code.co_name == "acquire"

def between(name, *arguments, importing=builtins.__import__, **named):
    if name.startswith("numba.") and threading.current_thread() is threading.main_thread():
        builtins.__import__ = importing
        other.start()
        while other.is_alive() and not waits():
            time.sleep(0.01)
    return importing(name, *arguments, **named)

other = threading.Thread(target=begin)
builtins.__import__ = between
import numba
other.join()
sys.exit(repr(failures) if failures else 0)
"""


def test_one_writer_may_come_while_another_thread_imports_numba() -> None:
    """A server does so: it warms up in one thread while the first request of a table is carried out in another."""
    done = subprocess.run(
        [sys.executable, "-c", IN_BETWEEN], capture_output=True, text=True, cwd=ROOT, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_loaded_kernels_keep_no_module_and_can_be_called_by_kernels_that_are_compiled_later(
    tmp_path: Path,
) -> None:
    without_modules()
    source = tmp_path / "doubling.py"
    source.write_text(
        "from numba import njit\n\n@njit('int64(int64)', cache=True)\ndef twice(x):\n    return 2 * x\n"
    )

    def twice() -> Any:
        spec = spec_from_file_location("doubling", source)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice

    assert sum(twice().stats.cache_misses.values()) == 1
    loaded = twice()
    assert sum(loaded.stats.cache_hits.values()) == 1
    (result,) = loaded.overloads.values()
    assert result.library._shared_module is None
    four_times = njit(lambda x: loaded(loaded(x)))
    assert (loaded(3), four_times(3)) == (6, 12)
