"""The plain manifests of `deploy/kubernetes`, made from the Helm chart.

    python deploy/render.py            compare them with the chart; exit status 1 if they differ
    python deploy/render.py --write    write them

It runs `helm`, from the folder of the running Python or from the PATH.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "headrace"
MANIFESTS = {
    "cluster.yaml": (
        ("brokers", "zookeeper"),
        "Three brokers and a ZooKeeper, each broker with a volume of its own. Clients inside the cluster bootstrap at\n"
        "# headrace:9092. It takes the place of headrace.yaml: the two have the same names.",
    ),
    "tierer.yaml": (("tierer",), "The tiering job, beside headrace.yaml or cluster.yaml."),
    "console.yaml": (("console",), "The web console, beside headrace.yaml or cluster.yaml."),
}
"""The templates and the heading of each file."""
KUBERNETES = "1.33.0"
_SETTINGS = ("tierer.enabled=true", "console.enabled=true")


def rendered(helm: str, name: str) -> str:
    """Return a manifest's text."""
    templates, heading = MANIFESTS[name]
    words = [helm, "template", "headrace", str(CHART), "--kube-version", KUBERNETES]
    for setting in _SETTINGS:
        words += ["--set", setting]
    for template in templates:
        words += ["--show-only", f"templates/{template}.yaml"]
    text = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    front = (
        "---\n"
        f"# {heading}\n# python deploy/render.py makes this file from the chart in deploy/helm/headrace.\n"
    )
    return front + text.removeprefix("---\n")


def main() -> int:
    here = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    helm = shutil.which("helm", path=here)
    if helm is None:
        print("helm is not on the PATH: make check installs it where Go is", file=sys.stderr)
        return 2
    status = 0
    for name in MANIFESTS:
        path = DEPLOY / "kubernetes" / name
        found, wanted = path.read_text() if path.exists() else "", rendered(helm, name)
        if sys.argv[1:] == ["--write"]:
            path.write_text(wanted)
        elif found != wanted:
            status = 1
            lines = difflib.unified_diff(
                found.splitlines(), wanted.splitlines(), str(path), "the chart's", lineterm=""
            )
            print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
