"""The page: one HTML file with everything in it. It fetches nothing, runs nothing, and may be kept, sent and printed.

Every chart is drawn twice, for a laptop and for a phone, and the style sheet shows the one that fits. A chart without
anything to show is a sentence that says why. A policy in the page itself forbids the browser to load anything.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from html import escape
from typing import Final

from .correlated import draw_correlations
from .lateness import draw_lateness
from .loads import Lines, draw_loads, draw_queues
from .material import Material, MetricError
from .panels import NARROW, WIDE
from .predictions import draw_predictions
from .summary import Fact, facts, length, plural, sentences
from .timeline import draw_timeline

_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0; background: #f5f7fa; color: #1f2933; font: 16px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 932px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 8px 0 12px; }
h2 { font-size: 19px; margin: 0 0 2px; }
p { margin: 0 0 10px; max-width: 70ch; }
.lead p { font-size: 17px; }
.facts { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0 22px; padding: 0; list-style: none; }
.facts li { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 10px 14px; flex: 1 1 150px;
  box-sizing: border-box; }
.facts b { display: block; font-size: 22px; line-height: 1.25; overflow-wrap: anywhere; }
.facts .bad { color: #c0283d; }
.facts span, .facts em { display: block; font-style: normal; font-size: 13px;
  line-height: 1.35; color: #52606d; }
section { background: #fff; border: 1px solid #e4e7eb; border-radius: 8px; padding: 16px; margin: 0 0 16px; }
section > p { color: #52606d; font-size: 14px; max-width: none; }
.beside { display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center; }
section > p.none { color: #1f2933; font-size: 16px; margin-bottom: 0; }
svg { display: block; max-width: 100%; height: auto; font-family: inherit; }
.narrow { display: none; }
table { border-collapse: collapse; font-size: 13px; margin-top: 12px; }
th, td { padding: 4px 10px 4px 0; white-space: nowrap; text-align: right; border-bottom: 1px solid #e4e7eb; }
th:first-child, td:first-child { text-align: left; }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 600; color: #52606d; }
.scroll { overflow-x: auto; }
footer { color: #52606d; font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 12px 8px 32px; }
  section { padding: 12px 10px; }
  .wide { display: none; }
  .narrow { display: block; }
  .facts li { flex-basis: 130px; }
}
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

Draw = Callable[[int], str]


def page(material: Material, title: str, made_at: datetime, origin: str, lines: Lines) -> str:
    """The whole of it."""
    parts = [_utilization(material, lines), _depth(material), _lateness(material), _timeline(material)]
    parts += [_predictions(material), _correlation(material)]
    told = "".join(f"<p>{escape(one)}</p>" for one in sentences(material))
    tiles = "".join(_tile(one) for one in facts(material))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><ul class="facts">{tiles}</ul><div class="lead">{told}</div>'
        f"{''.join(parts)}<footer>{escape(_footer(material, made_at, origin))}</footer></main></body></html>\n"
    )


def _tile(fact: Fact) -> str:
    bad = ' class="bad"' if fact.bad else ""
    return f"<li><span>{escape(fact.name)}</span><b{bad}>{escape(fact.value)}</b><em>{escape(fact.remark)}</em></li>"


def _footer(material: Material, made_at: datetime, origin: str) -> str:
    totals = material.totals
    refused = (
        f", and {plural(totals.refused, 'message')} that are no records in the quarantine" if totals.refused else ""
    )
    return (
        f"Made by tidegate analytics report at {made_at:%Y-%m-%d %H:%M} UTC from {origin}: "
        f"{plural(totals.records, 'record')} of telemetry{refused}. Times are UTC, by the clocks of the brokers."
    )


def _section(heading: str, caption: str, draw: Draw, after: str = "") -> str:
    drawn = f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'
    figure = f'<div class="beside">{drawn}{after}</div>' if after else drawn
    return f"<section><h2>{escape(heading)}</h2><p>{escape(caption)}</p>{figure}</section>"


def _nothing(heading: str, why: str) -> str:
    return f'<section><h2>{escape(heading)}</h2><p class="none">{escape(why)}</p></section>'


# One section per chart.


def _utilization(material: Material, lines: Lines) -> str:
    heading = "Utilization of edges"
    if not material.loads:
        if material.totals.edges:
            why = "Edges told their load, but none knows the bandwidth of its uplink, so there is no utilization: set "
            return _nothing(heading, why + "uplink_bytes_per_s, or let them learn it under load.")
        return _nothing(heading, "There is no load record of an edge in this time: was telemetry switched off?")
    shown = len(material.loads)
    caption = (
        f"What each uplink was asked to carry, as a share of its bandwidth, in windows of "
        f"{length(material.span.window_s)}. The strip below is the state of the edge."
    )
    if material.totals.edges > shown:
        caption += f" The {shown} busiest of {material.totals.edges} edges."
    return _section(
        heading, caption, lambda width: draw_loads(material.loads, material.sessions, material.span, width, lines)
    )


def _depth(material: Material) -> str:
    heading = "Queue depth against threshold"
    if not material.queues:
        return _nothing(
            heading, "No edge told thresholds in this time: none had a subscription with a deadline to keep."
        )
    caption = (
        "Messages that waited for a subscription, and how many might before its deadline was in danger. Of each topic "
        f"the subscription that came nearest, and of these {len(material.queues)}."
    )
    return _section(heading, caption, lambda width: draw_queues(material.queues, material.span, width))


def _lateness(material: Material) -> str:
    heading = "Deadlines, by topic"
    if not material.topics:
        why = "No subscriber reported latencies in this time: subscribers of the SDK do, unless telemetry is off."
        return _nothing(heading, why)
    caption = (
        f"Each cell is {length(material.span.detail_s)} of one topic: blue while all came in time, darker the closer "
        f"to the deadline; red when some were late."
    )
    if material.totals.topics > len(material.topics):
        caption += f" The {len(material.topics)} that fared worst of {material.totals.topics}."
    return _section(heading, caption, lambda width: draw_lateness(material.topics, material.span, width))


def _timeline(material: Material) -> str:
    heading = "Sessions and moves"
    if not material.sessions and not material.moves:
        return _nothing(heading, "No broker asked for a session and nobody was moved in this time.")
    caption = "A bar is a session in the lane of the broker that asked for it; an arrow is clients of one topic moving."
    left_out = material.totals.sessions - len(material.sessions)
    if left_out > 0:
        caption += f" The last {len(material.sessions)} sessions; {left_out} before are left out."
    return _section(
        heading, caption, lambda width: draw_timeline(material.sessions, material.moves, material.span, width)
    )


def _predictions(material: Material) -> str:
    heading = "Prediction error"
    if not material.predictions:
        if not material.sessions:
            return _nothing(heading, "There was no session, so nothing was predicted.")
        why = "There were sessions, but no effect was both predicted and measured: nobody was moved, or the time ended "
        return _nothing(heading, why + "before the moved load could show.")
    caption = (
        "Utilizations after a session, as it had predicted them and as they were measured. On the diagonal: right."
    )
    table = f'<div class="scroll">{_error_table(material.errors)}</div>' if material.errors else ""
    return _section(heading, caption, lambda width: draw_predictions(material.predictions, width), table)


def _error_table(errors: tuple[MetricError, ...]) -> str:
    heads = ("metric", "side", "measured", "bias", "mean error", "largest")
    rows = [[one.metric, one.side, f"{one.measured} of {one.predictions}", *_values(one)] for one in errors]
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{body}</table>"


def _values(error: MetricError) -> list[str]:
    def told(value: float | None, sign: str = "") -> str:
        if value is None:
            return "–"
        if error.metric == "bytes-offered":
            return f"{value / 1000:{sign},.1f} kB/s"
        return f"{100 * value:{sign}.1f} points"

    return [told(error.error_mean, "+"), told(error.error_absolute_mean), told(error.error_absolute_max)]


def _correlation(material: Material) -> str:
    heading = "Topics that rise together"
    found = material.correlations
    if found is None:
        why = "There are too few windows with rates of at least two topics to compare: let telemetry run for longer."
        return _nothing(heading, why)
    pairs = sum(1 for a, b in found.told if a in found.topics and b in found.topics)
    outlined = (
        f"Outlined are the {plural(pairs, 'pair')} that neither chance nor drift can explain."
        if pairs
        else "No pair is outlined: chance, drift or a single event could explain all that is seen here."
    )
    caption = (
        f"Correlation of publication rates over {found.windows} windows of {length(found.window_s)}; red rise "
        f"together, blue one rises as the other falls, blank one of them hardly changes. {outlined}"
    )
    return _section(heading, caption, lambda width: draw_correlations(found, width))
