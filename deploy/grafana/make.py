"""Writes the dashboards as JSON, for Grafana to read: `python -m deploy.grafana.make`, or `make docs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from .boards.balancer import balancer
from .boards.broker import broker
from .boards.cluster import cluster
from .boards.deadlines import deadlines
from .boards.rabbitmq import rabbitmq

BOARDS = {"deadlines": deadlines, "cluster": cluster, "broker": broker, "balancer": balancer, "rabbitmq": rabbitmq}
DIRECTORY = Path(__file__).parent / "dashboards"
TITLES = {"Sessions": "{{broker}} gives load away", "Alerts": "{{alertname}}"}
"""What an annotation is called where it is drawn: Grafana's Prometheus source reads it, the SDK has no word for it."""


def render(name: str) -> str:
    """One dashboard as Grafana reads it."""
    made: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(BOARDS[name]().build()))
    for number, panel in enumerate(made["panels"], start=1):
        panel["id"] = number
    for annotation in made["annotations"]["list"]:
        annotation["titleFormat"] = TITLES[annotation["name"]]
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for board in BOARDS:
        (DIRECTORY / f"{board}.json").write_text(render(board))
