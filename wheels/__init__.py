"""The two wheels: `headrace`, everything in one install, and `headrace-client`, for programs that only connect.

They are two distributions, because an extra can only add to an install, and `pip install headrace` must have all of it:
server, SQL, tables. The smaller one is separate, as psycopg2-binary and opencv-python-headless are. Both contain the
client's packages, and those of one version are the same files: only one of the two is installed. The client has only
those of headrace's dependencies that are named here. numba and LLVM (200 MB) compile code that the interpreter runs
without them (`protocol.loading.jit`); DuckDB and RocksDB belong to the server and SQL.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from headrace.tablelayer.spark.jars import catalog_jar

ROOT = Path(__file__).parents[1]
CLIENT_PACKAGES = ("headrace/protocol", "headrace/tablelayer/client", "headrace/tablelayer/model")
CLIENT_FILES = ("headrace/tablelayer/__init__.py", "headrace/tablelayer/plugins.py", "LICENSE")
CLIENT_DEPENDENCIES = ("numpy", "pyarrow", "crc32c", "cramjam", "msgspec", "sqlglot", "cryptography")
_CLIENT_README = """\
# headrace-client

The Python client of Headrace, without the server: `import headrace`,
`headrace.connect("host:9092")`. Install this or `headrace`, not both: the larger one has the same client.
Where numba is installed too, rows are placed in buckets faster; reading records of plain topics needs it.
"""


def client_project() -> str:
    """Return the client's pyproject.toml, made from headrace's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [each for each in project["dependencies"] if _name(each) in CLIENT_DEPENDENCIES]
    assert len(wanted) == len(CLIENT_DEPENDENCIES), "a dependency of the client is not one of ours any more"
    return f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "headrace-client"
version = "{project["version"]}"
description = "The Python client of Headrace, without the server."
readme = "README.md"
requires-python = "{project["requires-python"]}"
license = "{project["license"]}"
license-files = ["LICENSE"]
classifiers = {project["classifiers"]}
dependencies = {wanted}

[project.optional-dependencies]
fast = {[each for each in project["dependencies"] if _name(each) == "numba"]}
polars = {project["optional-dependencies"]["polars"]}

[tool.hatch.build.targets.wheel]
packages = ["headrace"]
"""


def _name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0]


def build(target: Path) -> list[Path]:
    """Build both wheels into a folder."""
    return [build_headrace(target), build_client(target)]


def build_headrace(target: Path) -> Path:
    """Build headrace with Spark's catalog, which `hatch_build.py` takes where it is compiled here."""
    catalog_jar()
    return _built(ROOT, target)


def build_client(target: Path) -> Path:
    source = ROOT / "build" / "client"
    shutil.rmtree(source, ignore_errors=True)
    ignored = shutil.ignore_patterns("tests", "__pycache__", "README.md")
    for name in CLIENT_PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for path in (*(ROOT / "headrace").glob("*.*"), *(ROOT / name for name in CLIENT_FILES)):
        shutil.copy(path, source / path.relative_to(ROOT))
    (source / "README.md").write_text(_CLIENT_README)
    (source / "pyproject.toml").write_text(client_project())
    return _built(source, target)


def _built(project: Path, target: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, project],
            check=True,
            capture_output=True,
        )
        (made,) = Path(folder).glob("*.whl")
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, target / made.name))
