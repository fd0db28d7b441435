"""`python -m docsite` builds `build/site`; `links` only looks for dead links; `pictures` draws the pictures, and
`references` writes the reference pages of `docs/`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docsite.links import dead_links, markdown_files
from docsite.pages import DOCS, ROOT, assemble
from docsite.pictures import draw
from docsite.references import PAGES

SOURCE = ROOT / "build" / "site-source"


def main(words: list[str]) -> int:
    if words == ["pictures"]:
        draw()
        return 0
    if words == ["references"]:
        for name, make in PAGES.items():
            (DOCS / name).write_text(make(), encoding="utf-8")
        return 0
    dead = [line for path in markdown_files() for line in dead_links(path)]
    if dead:
        print("\n".join(dead), file=sys.stderr)
        return 1
    if words == ["links"]:
        return 0
    assemble(SOURCE)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run(
        [zensical, "build", "--strict", "--clean"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if built.returncode:
        print(built.stdout + built.stderr, file=sys.stderr)
        return built.returncode
    print(f"the site is in {ROOT / 'build' / 'site'}: open index.html there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
