"""The expressions of the alerts and of the Grafana dashboard in `deploy/`, and the metrics that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds, and the one of a histogram's buckets."""
_METRIC = re.compile(r"\b(?:headrace|process)_[a-z_]+")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    loaded = yaml.safe_load((DEPLOY / "prometheus/headrace.rules.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with the text that its labels are shown in."""
    for rule in rules():
        yield str(rule["expr"]), str(rule["annotations"])
    dashboard = json.loads((DEPLOY / "grafana/headrace.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target.get("legendFormat", "")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").removesuffix(", instance)"), ""


def metrics_of(expression: str) -> list[str]:
    """Return the names of the metrics in an expression, those of the process included."""
    return _METRIC.findall(expression)


def grouped_by(expression: str) -> set[str]:
    """Return the labels by which an expression sums its series."""
    return {label.strip() for labels in _GROUPED.findall(expression) for label in labels.split(",")}


def needed() -> dict[str, set[str]]:
    """Return the labels that the alerts and the dashboard need of each metric, without those of Prometheus."""
    found: dict[str, set[str]] = {}
    for expression, shown in expressions():
        labels = grouped_by(expression) | set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown))
        for selected in re.findall(r"\{([^}]*)\}", expression):
            labels |= set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selected))
        for name in metrics_of(expression):
            found.setdefault(name, set()).update(labels - OF_PROMETHEUS)
    return found
