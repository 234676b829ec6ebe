"""The dashboards: made by the generator, valid by Grafana's own SDK, about metrics that exist, and readable."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.make import BOARDS, render
from tests.support.dashboards import DIRECTORY, NAMES, all_targets, load, panels
from tests.support.prometheus import PROMETHEUS, RABBITMQ, alerts, alternatives, metrics_in, selected
from tidegate_brokers.observe.exporting.reference import exported, families
from tidegate_protocol.decisions import BY_KIND, LABELS

ROOT = Path(__file__).parents[2]
every_dashboard = pytest.mark.parametrize("name", NAMES)


def test_all_are_there() -> None:
    assert sorted(BOARDS) == list(NAMES) == sorted(file.stem for file in DIRECTORY.glob("*.json"))


@every_dashboard
def test_what_is_committed_is_what_the_generator_makes(name: str) -> None:
    assert (DIRECTORY / f"{name}.json").read_text() == render(name), "run `make docs`"


@every_dashboard
def test_grafana_s_own_types_read_it_and_write_it_again(name: str) -> None:
    register_default_plugins()
    raw = load(name)
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(raw)))
    for annotation in raw["annotations"]["list"]:
        del annotation["titleFormat"]  # read by Grafana's Prometheus source; not in the published types
    for panel in again["panels"]:
        if panel.get("fieldConfig", {}).get("defaults", {}).get("custom") == {}:
            del panel["fieldConfig"]["defaults"]["custom"]  # the SDK writes an empty one where there was none
    assert again == raw


def test_every_metric_that_a_panel_names_is_exported() -> None:
    known = exported() | RABBITMQ | PROMETHEUS
    unknown = {
        f"{target.dashboard}, {target.panel}: {name}"
        for target in all_targets()
        for name in metrics_in(target.expr)
        if name not in known
    }
    assert unknown == set()


def test_what_is_said_to_be_rabbitmq_s_is_used() -> None:
    used = {name for target in all_targets() for name in metrics_in(target.expr)}
    used |= {name for alert in alerts() for name in metrics_in(alert["expr"])}
    assert used >= RABBITMQ


def test_labels_in_queries_are_labels_that_metrics_have() -> None:
    labels = {label for family in families() for label in family.labels}
    labels |= {"cluster", "broker", "role", "job", "alertname", "alertstate", "severity", "le", "version"}
    for target in all_targets():
        by = re.findall(r"\bby \(([^)]*)\)", target.expr)
        used = {label.strip() for group in by for label in group.split(",")}
        used |= set(re.findall(r'(\w+)=~?"', target.expr))
        assert used <= labels, (target.panel, used - labels)
        assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) <= {
            label for group in by for label in re.findall(r"\w+", group)
        }


@pytest.mark.parametrize(
    ("pattern", "consists_of"),
    [
        ("a", ["a"]),
        ("a|b", ["a", "b"]),
        ("a-(b|c)|d", ["a-b", "a-c", "d"]),
        ("x|a-(b|c)-e|d|f", ["x", "a-b-e", "a-c-e", "d", "f"]),
    ],
)
def test_alternatives_are_told_apart(pattern: str, consists_of: list[str]) -> None:
    assert alternatives(pattern) == consists_of


def test_decisions_that_queries_select_are_made() -> None:
    """A kind that was renamed would leave its panel empty, and its alert silent."""
    queries = [target.expr for target in all_targets()] + [alert["expr"] for alert in alerts()]
    of_decisions = [expression for expression in queries if "tidegate_decisions_total" in expression]
    kinds = [kind for text in of_decisions for found in selected(text, "decision") for kind in alternatives(found)]
    reasons = [reason for text in of_decisions for found in selected(text, "reason") for reason in alternatives(found)]
    assert kinds
    assert reasons
    assert {kind for kind in kinds if not any(re.fullmatch(kind, known) for known in BY_KIND)} == set()
    assert {reason for reason in reasons if not any(re.fullmatch(reason, known) for known in LABELS)} == set()


@every_dashboard
def test_panels_can_be_read(name: str) -> None:
    board = load(name)
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[:2] == ["datasource", "cluster"]
    for variable in board["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((\w+)\{(.*)\}, (\w+)\)", variable["query"])
        assert found is not None
        assert found[1] in exported() | PROMETHEUS
        assert found[3] == variable["name"]
    assert any(link["type"] == "dashboards" and link["tags"] == ["tidegate"] for link in board["links"])
    titles = [panel["title"] for panel in panels(name)]
    places = set()
    for panel in panels(name):
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert 0 < len(panel["title"]) <= 45
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        cells = {(where["x"] + x, where["y"] + y) for x in range(where["w"]) for y in range(where["h"])}
        assert not cells & places, f"{panel['title']} lies over another panel"
        places |= cells
        for target in panel["targets"]:
            used = set(re.findall(r'"\$(\w+)"', target["expr"]))
            assert used <= set(variables), (panel["title"], used)
            assert "$cluster" in target["expr"] or "ALERTS" in target["expr"], panel["title"]
    assert len(set(titles)) >= 12


def test_alerts_name_dashboards_that_are_there() -> None:
    uids = {load(name)["uid"] for name in NAMES}
    assert {alert["annotations"]["dashboard"] for alert in alerts()} <= uids
    linked = {uid for name in NAMES for uid in re.findall(r"/d/([\w-]+)", (DIRECTORY / f"{name}.json").read_text())}
    assert linked
    assert linked <= uids


def test_grafana_is_told_where_all_this_is() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tidegate.yml").read_text())["providers"]
    assert provider["type"] == "file"
