"""Dashboards as the tests read them: from the JSON that Grafana gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "grafana" / "dashboards"
NAMES = ("balancer", "broker", "cluster", "deadlines", "rabbitmq")


@dataclass(frozen=True, slots=True)
class Target:
    """One query of one panel."""

    dashboard: str
    panel: str
    expr: str
    legend: str
    instant: bool

    def resolved(self, cluster: str = ".*", broker: str = ".*", topic: str = ".*", rate: str = "30s") -> str:
        """The query as Grafana would send it."""
        text = self.expr
        for name, value in (("cluster", cluster), ("broker", broker), ("topic", topic)):
            text = text.replace(f'"${name}"', f'"{value}"')
        return text.replace("$__rate_interval", rate).replace("$__interval", rate)


def load(name: str) -> dict[str, Any]:
    """A dashboard."""
    found: dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Its panels, without headings."""
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def targets(name: str) -> Iterator[Target]:
    """All queries of its panels."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield Target(
                name, panel["title"], target["expr"], target.get("legendFormat", ""), bool(target.get("instant"))
            )


def all_targets() -> list[Target]:
    """All queries of all dashboards."""
    return [target for name in NAMES for target in targets(name)]
