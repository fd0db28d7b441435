"""The environments of the applications, made once per set of requirements, in a folder of the user's cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.maven import cache_root, made_once

INSTALL_SECONDS = 900


def python_of(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages. Raise RuntimeError with the installer's output."""
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    folder = cache_root() / "apps" / f"{name}-{digest}"
    python = folder / "bin" / "python"

    def install() -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        uv = Path(sys.executable).parent / "uv"
        done = subprocess.run(
            [str(uv), "pip", "install", "--quiet", "--python", str(python), *requirements],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name} cannot be installed: {done.stderr[-2000:]}")

    made_once(folder, install)
    return python
