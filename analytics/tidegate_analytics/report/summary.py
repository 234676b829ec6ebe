"""The summary at the top of a report: what happened, in a few sentences and numbers. Knows the material only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .material import US, BrokerLoad, Material, MetricError, QueueDepth, Span, TopicLateness


@dataclass(frozen=True, slots=True)
class Fact:
    """One number to see at once, with its name and what else is to know of it."""

    name: str
    value: str
    remark: str = ""
    bad: bool = False


def facts(material: Material) -> list[Fact]:
    """The numbers at the top."""
    totals = material.totals
    late_share = totals.late / totals.received if totals.received else 0.0
    worst = worst_topic(material.topics)
    found = [
        Fact("late", f"{late_share:.2%}", f"{totals.late:,} of {totals.received:,} messages", totals.late > 0)
        if totals.received
        else Fact("late", "–", "no subscriber reported"),
        Fact(
            "worst topic",
            worst.pattern if worst is not None else "none",
            f"{worst.late_share:.1%} late, deadline {worst.deadline_us / US:g} s" if worst else "all deadlines kept",
            worst is not None,
        ),
        Fact(
            "sessions",
            f"{totals.sessions:,}",
            f"{totals.sessions_moving:,} moved somebody, {totals.unnecessary:,} not necessary"
            if totals.sessions
            else "nobody asked for help",
            totals.unnecessary > 0,
        ),
        Fact("moves", f"{totals.moves:,}", _moves_remark(material), totals.moves_failed > 0),
    ]
    error = mean_error(material.errors)
    if error is not None:
        found.append(Fact("prediction error", f"{100 * error:.1f} points", "mean, of utilization"))
    return found


def _moves_remark(material: Material) -> str:
    totals = material.totals
    parts = [f"{totals.moves_failed:,} failed"] if totals.moves or totals.moves_failed else ["nobody was moved"]
    if totals.returns:
        parts.append(f"{totals.returns:,} of them returns")
    return ", ".join(parts)


def sentences(material: Material) -> list[str]:
    """What happened."""
    found = [_traffic(material), _balancing(material)]
    if material.loads:
        found.append(_busiest(material.loads, material.span))
    if material.queues:
        found.append(_nearest(material.queues[0]))
    error = mean_error(material.errors)
    if error is not None:
        count = sum(one.measured for one in material.errors if one.metric != "bytes-offered")
        found.append(
            f"The effect of sessions on utilizations was predicted to within {100 * error:.1f} percentage points on "
            f"average, over {plural(count, 'measurement')}."
        )
    return found


def _traffic(material: Material) -> str:
    totals = material.totals
    if not totals.received:
        return f"{_when(material.span)} no subscriber reported what it got, so nothing is known of deadlines."
    who = f"{plural(totals.subscriptions, 'subscription')} to {plural(totals.topics, 'topic')}"
    text = f"{_when(material.span)} {who} got {totals.received:,} messages"
    worst = worst_topic(material.topics)
    if worst is None:
        text += ", every one of them in time."
    else:
        share = totals.late / totals.received
        text += (
            f"; {totals.late:,} of them ({share:.2%}) came after their deadline. Worst off was {worst.pattern}, with "
            f"{worst.late_share:.1%} late against a deadline of {worst.deadline_us / US:g} s."
        )
    if totals.lost:
        text += f" {plural(totals.lost, 'message')} had not come at all by the end."
    return text


def _balancing(material: Material) -> str:
    totals = material.totals
    policies = " and ".join(totals.policies)
    if not totals.sessions:
        return "No broker asked for a session: nothing was moved to make room."
    text = f"{plural(totals.sessions, 'session')} ({policies}) "
    if totals.sessions_moving < totals.sessions:
        text += f"{'was' if totals.sessions == 1 else 'were'} asked for, and {totals.sessions_moving:,} of them "
    text += f"moved {plural(totals.moves, 'client')}" if totals.moves else "moved nobody"
    if totals.moves_failed:
        text += f", and {plural(totals.moves_failed, 'move')} failed"
    if totals.unnecessary:
        verb = "was" if totals.unnecessary == 1 else "were"
        text += f"; {totals.unnecessary:,} {verb} not necessary: no deadline was about to be missed"
    else:
        text += "; it was necessary" if totals.sessions == 1 else "; every one was necessary"
    text += "."
    if totals.returns:
        text += f" {plural(totals.returns, 'move')} went back to a broker left within the hour before."
    return text


def _busiest(loads: Sequence[BrokerLoad], span: Span) -> str:
    load = max(loads, key=lambda one: one.highest.uplink)
    highest = load.highest
    when = _at(highest.at_us, span)
    text = f"The busiest edge, {load.broker}, was offered up to {highest.uplink:.0%} of its uplink {when}"
    overloaded = load.share_of("OVERLOAD")
    return text + (f" and was overloaded {overloaded:.0%} of the time." if overloaded else ".")


def _nearest(queue: QueueDepth) -> str:
    ratio = queue.nearest
    where = f"{queue.subscriber} ({queue.pattern}, deadline {queue.deadline_us / US:g} s)"
    if ratio >= 99:
        return f"Messages waited for {where} at a time when its deadline allowed no waiting."
    if ratio > 1:
        return f"The fullest queue was that of {where}: {ratio:.1f} times what might wait in it."
    return f"No queue passed its threshold; the nearest was that of {where}, at {ratio:.0%} of it."


def _when(span: Span) -> str:
    start, end = _moment(span.start_us), _moment(span.end_us)
    last = f"{end:%H:%M:%S}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f"From {start:%Y-%m-%d %H:%M:%S} to {last} UTC ({length(span.seconds)})"


def _at(at_us: int, span: Span) -> str:
    return f"{span.after_s(at_us):.0f} s after the start" if span.seconds <= 900 else f"at {_moment(at_us):%H:%M} UTC"


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / US, UTC)


def length(seconds: float) -> str:
    """How long, in a unit that fits."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size:
            return plural(round(seconds / size), unit)
    return plural(round(seconds), "second")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def worst_topic(topics: Sequence[TopicLateness]) -> TopicLateness | None:
    """The one with the largest share of late messages; None where none was late."""
    late = [topic for topic in topics if topic.late]
    return max(late, key=lambda topic: (topic.late_share, topic.late), default=None)


def mean_error(errors: Sequence[MetricError]) -> float | None:
    """Of utilizations, without regard to the sign."""
    known = [one for one in errors if one.metric != "bytes-offered" and one.error_absolute_mean is not None]
    count = sum(one.measured for one in known)
    return sum((one.error_absolute_mean or 0.0) * one.measured for one in known) / count if count else None
