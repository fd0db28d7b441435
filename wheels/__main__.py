"""`python -m wheels`: build both wheels into `dist/`."""

from __future__ import annotations

from wheels import ROOT, build

if __name__ == "__main__":
    for old in (ROOT / "dist").glob("*.whl"):
        old.unlink()
    for wheel in build(ROOT / "dist"):
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")
