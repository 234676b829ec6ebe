"""Draws the dashboards from the data of a real Prometheus, without Grafana: to see that they show what they should.

    python -m deploy.grafana.draw --prometheus http://localhost:9090 --minutes 30 --out pictures/ --broker harbour

Reads the same JSON as Grafana does: places, titles, units, thresholds, names of lines, words for values. It is a plain
picture, not a second Grafana: no tooltips, no themes, and of a table the first rows.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import matplotlib

matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plt

DIRECTORY = Path(__file__).parent / "dashboards"
COLUMN_IN, ROW_IN = 0.85, 0.36
"""Size of a cell of Grafana's grid."""
LINES_MAX = 12
"""Lines named in a legend."""
DOTS_PER_IN = 80
RATE_MIN_S = 20.0
"""Four times what deploy/prometheus has for `scrape_interval`: what Grafana makes of `$__rate_interval` at least."""
ROWS_MAX = 9
"""Rows of a table."""
COLOURS = {"green": "#56A64B", "red": "#E02F44", "blue": "#3274D9", "transparent": "#808080"}
Pairs = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Window:
    """Which data are drawn."""

    url: str
    start_s: float
    end_s: float
    step_s: float
    variables: Mapping[str, str]
    rate: str
    http: httpx.Client

    def resolved(self, expr: str) -> str:
        """A query as Grafana would send it."""
        for name, value in self.variables.items():
            expr = expr.replace(f'"${name}"', f'"{value}"')
        return expr.replace("$__rate_interval", self.rate).replace("$__interval", self.rate)

    def series(self, target: Mapping[str, Any]) -> list[tuple[str, dict[str, str], Pairs]]:
        """The lines of a query with their names."""
        data = {"query": self.resolved(target["expr"]), "start": self.start_s, "end": self.end_s, "step": self.step_s}
        found = []
        for result in self._ask("query_range", data):
            labels: dict[str, str] = result["metric"]
            values = [(float(at), float(value)) for at, value in result["values"]]
            found.append((named(target.get("legendFormat", ""), labels), labels, values))
        return sorted(found, key=lambda line: line[0])

    def now(self, target: Mapping[str, Any]) -> list[tuple[dict[str, str], float]]:
        """The answer at the end of the window."""
        data = {"query": self.resolved(target["expr"]), "time": self.end_s}
        return [(result["metric"], float(result["value"][1])) for result in self._ask("query", data)]

    def _ask(self, what: str, data: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self.http.post(f"{self.url}/api/v1/{what}", data=dict(data))
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found


def named(legend: str, labels: Mapping[str, str]) -> str:
    """What a line is called."""
    if legend in ("", "__auto"):
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)


def told(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit."""
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit in ("bytes", "Bps"):
        for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}B{'/s' if unit == 'Bps' else ''}"
    suffix = {"s": " s", "cps": "/s", "bytes": " B", "Bps": " B/s"}.get(unit, "")
    return f"{value:.4g}{suffix}" if decimals is None else f"{value:.{decimals}f}{suffix}"


def _moments(values: Pairs) -> list[float]:
    return [float(dates.date2num(datetime.fromtimestamp(at))) for at, _ in values]


def _defaults(panel: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel["fieldConfig"]["defaults"]
    return found


def _words(panel: Mapping[str, Any]) -> dict[float, tuple[str, str]]:
    words: dict[float, tuple[str, str]] = {}
    for mapping in _defaults(panel).get("mappings", []):
        for value, word in mapping["options"].items():
            words[float(value)] = (word["text"], COLOURS.get(word["color"], word["color"]))
    return words


# One function for each kind of panel


def draw_lines(axes: Any, panel: Mapping[str, Any], window: Window) -> None:
    """A time series."""
    custom = _defaults(panel).get("custom", {})
    bars, unit = custom.get("drawStyle") == "bars", _defaults(panel)["unit"]
    overrides = panel["fieldConfig"]["overrides"]
    dashed = [one["matcher"]["options"].strip("/") for one in overrides if one["matcher"]["id"] == "byRegexp"]
    below: dict[float, float] = {}
    count, colours = 0, {}
    for target in panel["targets"]:
        for name, _, values in window.series(target):
            moments, heights = _moments(values), [value for _, value in values]
            label = name if count < LINES_MAX else None
            count += 1
            if bars:
                floor = [below.get(moment, 0.0) for moment in moments]
                axes.bar(moments, heights, width=window.step_s / 86_400, bottom=floor, label=label)
                below |= {m: f + h for m, f, h in zip(moments, floor, heights, strict=True) if h == h}
            elif any(re.search(pattern, name) for pattern in dashed):
                whose = name.split(": ")[-1].split(" of ")[-1]
                axes.plot(moments, heights, "--", linewidth=1, label=label, color=colours.get(whose))
            else:
                (line,) = axes.plot(moments, heights, linewidth=1.6, label=label)
                colours[name] = line.get_color()
    for step in _defaults(panel).get("thresholds", {}).get("steps", []):
        if step["value"] is not None and custom.get("thresholdsStyle"):
            axes.axhline(step["value"], linestyle=":", linewidth=1, color=COLOURS.get(step["color"], step["color"]))
    axes.yaxis.set_major_formatter(lambda value, _: told(value, unit))
    if "min" in _defaults(panel):
        axes.set_ylim(bottom=_defaults(panel)["min"])
    _times(axes, window)
    if count:
        axes.legend(fontsize=7, loc="upper left", framealpha=0.6, ncols=1 if count < 7 else 2)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, color="#808080")


def draw_number(axes: Any, panel: Mapping[str, Any], window: Window) -> None:
    """A single value."""
    axes.axis("off")
    (target,) = panel["targets"]
    lines = window.series(target)
    if not lines:
        axes.text(0.5, 0.4, _defaults(panel).get("noValue", "no data"), ha="center", fontsize=14, color="#808080")
        return
    name, _, values = lines[0]
    value, words = values[-1][1], _words(panel)
    text, colour = words.get(value) or (
        told(value, _defaults(panel)["unit"], _defaults(panel).get("decimals")),
        "black",
    )
    for step in _defaults(panel).get("thresholds", {}).get("steps", []):
        if not words and (step["value"] is None or value >= step["value"]) and step["color"] != "transparent":
            colour = COLOURS.get(step["color"], step["color"])
    wide = target.get("legendFormat") not in ("", "__auto")
    axes.text(0.5, 0.4, f"{name}" if wide else text, ha="center", fontsize=20, color=colour, transform=axes.transAxes)


def draw_states(axes: Any, panel: Mapping[str, Any], window: Window) -> None:
    """What was when."""
    words, seen = _words(panel), dict[str, str]()
    lines = [line for target in panel["targets"] for line in window.series(target)]
    width = window.step_s / 86_400
    for place, (_, _, values) in enumerate(lines):
        for moment, length, value in _spans(values, width):
            text, colour = words.get(value, (f"{value:g}", "#808080"))
            label = text if text not in seen else None
            seen[text] = colour
            axes.barh(place, length, left=moment, height=0.8, color=colour, label=label, linewidth=0)
    axes.set_yticks(range(len(lines)), [name for name, _, _ in lines], fontsize=8.5)
    _times(axes, window)
    if lines:
        axes.legend(fontsize=8, loc="upper right", ncols=4)


def _spans(values: Pairs, width: float) -> list[tuple[float, float, float]]:
    """When each value began, and how long it stayed."""
    spans: list[tuple[float, float, float]] = []
    for moment, (_, value) in zip(_moments(values), values, strict=True):
        if spans and spans[-1][2] == value:
            spans[-1] = (spans[-1][0], moment + width - spans[-1][0], value)
        else:
            spans.append((moment, width, value))
    return spans


def draw_table(axes: Any, panel: Mapping[str, Any], window: Window) -> None:
    """The first rows of a table."""
    axes.axis("off")
    organize = next(one for one in panel["transformations"] if one["id"] == "organize")["options"]
    headings = list(organize["renameByName"].values())
    order = organize["indexByName"]
    by = sorted((label for label in order if not label.startswith("Value")), key=lambda label: order[label])
    units = {o["matcher"]["options"]: o["properties"][0]["value"] for o in panel["fieldConfig"]["overrides"]}
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    for target, heading in zip(panel["targets"], headings, strict=True):
        for labels, value in window.now(target):
            rows.setdefault(tuple(labels.get(label, "") for label in by), {})[heading] = value
    sort = panel["options"]["sortBy"][0]["displayName"]
    ordered = sorted(rows.items(), key=lambda row: -row[1].get(sort, 0.0))[:ROWS_MAX]
    if not ordered:
        axes.text(0.5, 0.5, "no rows", ha="center", color="#808080", transform=axes.transAxes)
        return
    cells = [[*key, *(told(v[h], units[h]) if h in v else "" for h in headings)] for key, v in ordered]
    made = axes.table(cellText=cells, colLabels=[*by, *headings], loc="upper center", cellLoc="left")
    made.auto_set_font_size(False)
    made.set_fontsize(9)


def draw_heatmap(axes: Any, panel: Mapping[str, Any], window: Window) -> None:
    """A histogram over time."""
    (target,) = panel["targets"]
    lines = sorted(window.series(target), key=lambda line: float(line[1]["le"]))
    moments = sorted({at for _, _, values in lines for at, _ in values})
    before = dict.fromkeys(moments, 0.0)
    grid = []
    for _, _, values in lines:
        counts = dict(values)
        grid.append([max(counts.get(at, 0.0) - before[at], 0.0) for at in moments])
        before |= counts
    if not grid:
        axes.text(0.5, 0.5, "no data", ha="center", color="#808080", transform=axes.transAxes)
        return
    places = _moments([(at, 0.0) for at in moments])
    axes.pcolormesh(places, range(len(grid)), grid, cmap="Oranges", shading="nearest")
    axes.set_yticks(range(len(grid)), [f"≤ {labels['le']}" for _, labels, _ in lines], fontsize=7)
    _times(axes, window)


def _times(axes: Any, window: Window) -> None:
    axes.set_xlim(*(_moments([(window.start_s, 0.0), (window.end_s, 0.0)])))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
    axes.tick_params(labelsize=7.5)


DRAWING = {
    "timeseries": draw_lines,
    "stat": draw_number,
    "state-timeline": draw_states,
    "table": draw_table,
    "heatmap": draw_heatmap,
}


def client() -> httpx.Client:
    """For the questions of all windows; to be closed."""
    return httpx.Client(timeout=30, trust_env=False, verify=False)


def draw(name: str, window: Window, file: Path) -> None:
    """One dashboard into one picture."""
    board = json.loads((DIRECTORY / f"{name}.json").read_text())
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 1
    figure = plt.figure(figsize=(24 * COLUMN_IN, rows * ROW_IN), facecolor="white")
    figure.text(0.01, 1 - 0.7 / rows, board["title"], fontsize=16, weight="bold")
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - (place["y"] + 1) / rows
        if panel["type"] == "row":
            figure.text(left + 0.005, top - 0.7 / rows, panel["title"], fontsize=12, weight="bold", color="#555555")
            continue
        box = (left + 0.034, top - (place["h"] - 0.9) / rows, place["w"] / 24 - 0.042, (place["h"] - 2.0) / rows)
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=10.5, loc="left")
        DRAWING[panel["type"]](axes, panel, window)
    figure.savefig(file, dpi=DOTS_PER_IN)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://localhost:9090", help="address of Prometheus")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far back")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--broker", default=".*", help="for the dashboard Broker")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    end_s, step_s = time.time(), max(1.0, given.minutes * 60 / 240)
    with client() as http:
        for file in sorted(DIRECTORY.glob("*.json")):
            broker = given.broker if file.stem == "broker" else ".*"
            variables = {"cluster": ".*", "topic": ".*", "broker": broker}
            rate = f"{max(4 * step_s, RATE_MIN_S):.0f}s"
            window = Window(given.prometheus, end_s - given.minutes * 60, end_s, step_s, variables, rate, http)
            draw(file.stem, window, given.out / f"{file.stem}.png")


if __name__ == "__main__":
    main()
