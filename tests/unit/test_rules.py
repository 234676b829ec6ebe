"""The alerts: valid, tested, about metrics that exist, and each with a runbook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prometheus import PROMETHEUS, RABBITMQ, RULES, alerts, metrics_in, promtool
from tidegate_brokers.observe.exporting.reference import exported

ROOT = Path(__file__).parents[2]
DIRECTORY = RULES.parent
ALERTS = alerts()
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def test_prometheus_takes_the_rules() -> None:
    files = [str(file.relative_to(DIRECTORY)) for file in sorted(RULES.glob("*.yml"))]
    done = promtool("check", "rules", *files, directory=DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_on_what_they_are_for_and_on_nothing_else() -> None:
    done = promtool("test", "rules", "tests/tidegate.yml", directory=DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


@every_alert
def test_an_alert_has_a_unit_test(alert: dict[str, str]) -> None:
    assert f"alertname: {alert['alert']}, exp_alerts: [\n" in (DIRECTORY / "tests" / "tidegate.yml").read_text()


@every_alert
def test_an_alert_is_about_metrics_that_are_exported(alert: dict[str, str]) -> None:
    used = metrics_in(alert["expr"])
    assert used
    assert used <= exported() | RABBITMQ | PROMETHEUS


@every_alert
def test_an_alert_has_a_severity_and_a_runbook(alert: dict[str, dict[str, str]]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    annotations = alert["annotations"]
    assert annotations.keys() == {"summary", "description", "dashboard", "runbook"}
    page, _, anchor = annotations["runbook"].partition("#")
    headings = [line[4:] for line in (ROOT / page).read_text().splitlines() if line.startswith("### ")]
    assert anchor == str(alert["alert"]).lower()
    assert str(alert["alert"]) in headings


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (cluster, topic) (increase(a_total{x="b", y=~"c|d"}[2m])) > 0', {"a_total"}),
        ("max by (le) (a == 1) and on (x) b offset 2m unless c", {"a", "b", "c"}),
        ('histogram_quantile(0.99, sum by (le) (rate(a_bucket{topic=~"$topic"}[$__rate_interval])))', {"a_bucket"}),
        ("1 - a / clamp_min(b, 1e-9)", {"a", "b"}),
    ],
)
def test_names_are_found_in_queries(expression: str, names: set[str]) -> None:
    assert metrics_in(expression) == names
