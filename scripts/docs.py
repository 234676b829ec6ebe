"""Writes what is made from the code: pages of `docs/`, dashboards. A test fails when one of them is out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidegate_brokers.exporting import reference
from tidegate_brokers.settings import render_reference

DOCS = Path(__file__).parents[1] / "docs"

if __name__ == "__main__":
    (DOCS / "configuration.md").write_text(render_reference())
    (DOCS / "metrics.md").write_text(reference.render())
    subprocess.run([sys.executable, "-m", "deploy.grafana.make"], cwd=DOCS.parent, check=True)
