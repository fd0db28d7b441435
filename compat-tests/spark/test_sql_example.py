"""The notebook of Spark SQL, in a session by `headrace.spark` and in one by the program itself, and the catalog's
error when its Python has no headrace.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("session", ["ours", "own"])
def test_the_cells_of_the_example_run_and_their_check_succeeds(session: str) -> None:
    words = [sys.executable, "-m", "examples.spark_sql", *(["--own"] if session == "own" else [])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.count("|true|") == 1


ANOTHER_PYTHON = """
from examples.spark_sql.__main__ import session_of_ours
spark = session_of_ours("127.0.0.1:9")
spark.conf.set("spark.sql.catalog.other", "headrace.spark.HeadraceCatalog")
spark.conf.set("spark.sql.catalog.other.python", {python!r})
try:
    spark.sql("SHOW NAMESPACES IN other").collect()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_python_without_headrace_is_named_with_what_to_set(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    program = ANOTHER_PYTHON.format(python=str(python))
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())})  # fmt: skip
    told = f"Python {python} of the driver cannot run headrace"
    assert told in done.stdout, done.stdout + done.stderr[-2000:]
    assert "set PYSPARK_DRIVER_PYTHON or spark.pyspark.driver.python" in done.stdout
