"""The panels that dashboards are made of: numbers, lines, states and tables, all of one look.

Built with Grafana's own SDK, whose types follow Grafana's published schema, so that what comes out is valid by
construction.

Invariants: every panel has a title, a description, a unit and queries that filter by the dashboard's variables. The
threshold that a value is judged by is drawn with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    common as common_builders,
    dashboard as builders,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common, dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED, BLUE, GREY = "green", "#EAB839", "red", "blue", "#808080"
TAG = "tidegate"

STATES = {0: ("LOW", GREEN), 1: ("HIGH", YELLOW), 2: ("OVERLOAD", RED), 3: ("N/A", GREY)}
ACTIVITIES = {0: ("watching", GREEN), 1: ("stabilizing", BLUE), 2: ("takes load", YELLOW), 3: ("gives load", RED)}
UP = {0: ("down", RED), 1: ("up", GREEN)}
YES_IS_BAD = {0: ("no", GREEN), 1: ("yes", RED)}

Rows = tuple[tuple[str, tuple["Panel", ...]], ...]
"""Headings, and the panels under each."""
Panel = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel | heatmap.Panel
Step = tuple[float | None, str]
"""From which value on, and the colour; None for the first."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of PromQL and what its lines are called."""

    expr: str
    legend: str = ""


def q(expr: str, legend: str = "") -> Query:
    """A query, with its line breaks taken out."""
    return Query(" ".join(expr.split()), legend)


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    span: int = 12,
    limits: Sequence[Step] = (),
    stacked: bool = False,
    bars: bool = False,
    dashed: str = "",
    least: float | None = 0.0,
    link: str = "",
) -> Panel:
    """Values over time. `limits` are drawn; lines whose names match `dashed` are what others are judged by."""
    panel = timeseries.Panel().show_points(common.VisibilityMode.NEVER).line_width(2).fill_opacity(30 if bars else 8)
    panel.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    if bars:
        panel.draw_style(common.GraphDrawStyle.BARS)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if limits:
        panel.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if least is not None:
        panel.min(least)
    if dashed:
        style = models.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]})
        width = models.DynamicConfigValue(id_val="custom.lineWidth", value=1)
        fill = models.DynamicConfigValue(id_val="custom.fillOpacity", value=0)
        panel.override_by_regexp(dashed, [style, width, fill])
    return _common(panel, title, description, unit, queries, span, 9, limits, link)


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    steps: Sequence[Step] = (),
    span: int = 4,
    words: dict[int, tuple[str, str]] | None = None,
    legend: str = "",
    decimals: int | None = None,
) -> Panel:
    """One value, large."""
    panel = stat.Panel().reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_mode(common.BigValueColorMode.VALUE if steps or words else common.BigValueColorMode.NONE)
    panel.graph_mode(common.BigValueGraphMode.NONE if words else common.BigValueGraphMode.AREA)
    panel.no_value("none")
    if legend:
        panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
    if words is not None:
        panel.mappings([_mapping(words)])
    if decimals is not None:
        panel.decimals(decimals)
    return _common(panel, title, description, unit, [q(expr, legend)], span, 5, steps)


def states(
    title: str, description: str, query: Query, words: dict[int, tuple[str, str]], *, span: int = 24, height: int = 8
) -> Panel:
    """What somebody was in when."""
    panel = statetimeline.Panel().merge_values(True).show_value(common.VisibilityMode.AUTO).row_height(0.85)
    panel.line_width(0).fill_opacity(70)
    panel.mappings([_mapping(words)])
    panel.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return _common(panel, title, description, "none", [query], span, height, ())


def rows(
    title: str,
    description: str,
    queries: Sequence[tuple[str, str, str]],
    *,
    by: Sequence[str],
    sort: str,
    span: int = 24,
) -> Panel:
    """A table with a row per combination of the labels `by`, a column per query: expression, heading, unit."""
    panel = table.Panel().filterable(True)
    letters = [chr(ord("A") + place) for place in range(len(queries))]
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    names = {f"Value #{letter}": heading for letter, (_, heading, _) in zip(letters, queries, strict=True)}
    order = {label: place for place, label in enumerate([*by, *names])}
    options: dict[str, Any] = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names}
    panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=options))
    for _, heading, unit in queries:
        panel.override_by_name(heading, [models.DynamicConfigValue(id_val="unit", value=unit)])
    panel.sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(True)])
    for letter, (expr, _, _) in zip(letters, queries, strict=True):
        target = prometheus.Dataquery().expr(q(expr).expr).instant().format(PromQueryFormat.TABLE).ref_id(letter)
        panel.with_target(target.datasource(SOURCE))
    return panel.title(title).description(description).span(span).height(9).datasource(SOURCE).unit("none")


def shares(title: str, description: str, expr: str, unit: str, *, span: int = 12) -> Panel:
    """A histogram over time, darker where there is more."""
    panel = heatmap.Panel().calculate(False)
    target = prometheus.Dataquery().expr(q(expr).expr).range().format(PromQueryFormat.HEATMAP).legend_format("{{le}}")
    panel.with_target(target.ref_id("A").datasource(SOURCE))
    return panel.title(title).description(description).span(span).height(9).datasource(SOURCE).unit(unit)


def _common(
    panel: Any,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    span: int,
    height: int,
    steps: Sequence[Step],
    link: str = "",
) -> Any:
    panel.title(title).description(description).unit(unit).span(span).height(height).datasource(SOURCE)
    for place, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).range().legend_format(query.legend or "__auto")
        panel.with_target(target.ref_id(chr(ord("A") + place)).datasource(SOURCE))
    if steps:
        first = () if steps[0][0] is None else ((None, "transparent"),)
        found = [models.Threshold(value=value, color=colour) for value, colour in (*first, *steps)]
        panel.thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(found))
    if link:
        labels = "&".join(f"var-{name}=${{__field.labels.{name}}}" for name in ("cluster", "broker"))
        url = f"/d/{link}?${{__url_time_range}}&{labels}"
        panel.data_links([builders.DashboardLink("this broker in depth").url(url)])
    return panel


def _mapping(words: dict[int, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(value): models.ValueMappingResult(text=text, color=colour, index=value)
            for value, (text, colour) in words.items()
        }
    )


# Dashboards


def filled(made: builders.Dashboard, rows_of: Rows) -> builders.Dashboard:
    """A dashboard with all its panels."""
    for heading, panels in rows_of:
        made.with_row(builders.Row(heading))
        for panel in panels:
            made.with_panel(panel)
    return made


def board(uid: str, title: str, description: str, *variables: str) -> builders.Dashboard:
    """An empty dashboard with the usual variables and links to all others."""
    made = (
        builders.Dashboard(f"Tidegate / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Tidegate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name in variables:
        made.with_variable(_variable(name))
    made.annotation(_moments("Sessions", "sum by (cluster, broker) (increase(tidegate_sessions_started_total"
                             '{cluster=~"$cluster"}[$__interval])) > 0', BLUE))  # fmt: skip
    made.annotation(
        _moments("Alerts", 'ALERTS{alertname=~"Tidegate.*", alertstate="firing", severity="critical"}', RED)
    )
    return made


def _variable(name: str) -> builders.QueryVariable:
    queries = {
        "cluster": ("Cluster", 'label_values(up{job="tidegate"}, cluster)', True),
        "broker": ("Broker", 'label_values(up{job="tidegate", cluster=~"$cluster"}, broker)', False),
        "brokers": ("Broker", 'label_values(up{job="rabbitmq", cluster=~"$cluster"}, broker)', True),
        "topic": ("Topic", 'label_values(tidegate_topic_subscriptions_count{cluster=~"$cluster"}, topic)', True),
    }
    label, query, several = queries[name]
    variable = builders.QueryVariable("broker" if name == "brokers" else name).label(label).datasource(SOURCE)
    variable.query(query).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(models.VariableSort.ALPHABETICAL_ASC)
    if several:
        variable.multi(True).include_all(True).all_value(".*")
        variable.current(models.VariableOption(text="All", value="$__all", selected=True))
    return variable


def _moments(name: str, expr: str, colour: str) -> builders.AnnotationQuery:
    """Marks on the time axis of every panel."""
    return builders.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expr)
