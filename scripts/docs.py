"""Writes what is made from the code: pages of `docs/`, dashboards. A test fails when one of them is out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import decisions_page
import operator_examples

from tidegate_brokers.observe.exporting import reference
from tidegate_brokers.settings.reading import render_reference

DOCS = Path(__file__).parents[1] / "docs"

if __name__ == "__main__":
    (DOCS / "configuration.md").write_text(render_reference())
    (DOCS / "decisions.md").write_text(decisions_page.render())
    operations = DOCS / "operations.md"
    operations.write_text(operator_examples.filled(operations.read_text()))
    (DOCS / "metrics.md").write_text(reference.render())
    subprocess.run([sys.executable, "-m", "deploy.grafana.make"], cwd=DOCS.parent, check=True)
