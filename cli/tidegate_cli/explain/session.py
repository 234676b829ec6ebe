"""A session explained: one paragraph of plain sentences, then the numbers it rests on.

The paragraph says what was about to go wrong, who was asked, what was decided and why not otherwise, what was
predicted, and what came of it. Whatever is not known (an edge did not answer, an agent has been restarted since) is
left out, and the gap is named.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate_protocol.operations import ExplainReply, Told

from .facts import DRAIN_PREFIX, Course, Moved, Utilization
from .insights import forecast_words
from .words import (
    amount,
    because,
    clock,
    compared,
    counted,
    listed,
    messages,
    percent,
    seconds,
    sentence,
    subscription,
    times,
    when,
    who_not,
    why_not,
)

ALTERNATIVES_SAID_MAX: Final = 3
"""Alternatives named in the paragraph; the table has them all."""
REFUSED_SAID_MAX: Final = 6
GROWS: Final = 1.01
"""A queue grows if so many times as much comes in as goes out."""
TIMELINE_MAX: Final = 40

LABELS: Final = {
    "load-state": "its load",
    "session-requested": "asks for help",
    "session-refused": "refuses",
    "session-candidates": "has asked the candidates for their load",
    "session-planned": "has a plan",
    "session-empty": "finds nothing to move",
    "session-remote": "asks other clusters",
    "session-last-resort": "asks those that are busy, as a last resort",
    "session-plan": "accepts the plan",
    "session-ended": "the session is over",
    "session-failed": "the session came to nothing",
    "session-left": "leaves the session",
    "session-not-started": "starts no session",
    "stabilized": "the load has settled",
    "remote-candidates": "has asked other clusters",
    "migration-ended": "moved",
    "migration-failed": "did not move",
    "publisher-session": "asks other heads to take publishers",
    "publisher-plan": "has a plan",
    "publisher-moved": "publisher moved",
    "publisher-stayed": "publisher did not move",
    "publisher-session-ended": "the session is over",
    "placement": "placed",
    "removal": "removed",
    "slow-subscriber": "too slow",
    "slow-subscriber-recovered": "keeps up again",
    "uplink-narrowed": "carries less than it did",
    "infeasible-deadline": "can't be met",
    "feasible-deadline": "can be met again",
    "flooding-publisher": "floods",
    "publisher-disconnected": "was disconnected",
    "publisher-behaves": "behaves again",
    "drain": "is being drained",
    "undrain": "is used again",
    "drained": "is empty",
    "drain-waits": "can't be emptied further now",
    "edge-alive": "is there",
    "edge-not-alive": "is not there",
    "registry-read": "its subscriptions were read anew",
    "rabbitmq-alarm": "its RabbitMQ has an alarm",
    "rabbitmq-alarm-over": "the alarm of its RabbitMQ is over",
    "insight-taken": "takes an insight",
    "insight-refused": "refuses an insight",
    "insight-expired": "its insight has expired",
    "insight-withdrawn": "its insight was taken back",
    "insight-told": "is told of an insight",
    "insight-over": "its insight is over",
    "paused": "balancing switched off",
    "resumed": "balancing switched on",
}
"""What a kind of decision is in words."""


def label(told: Told) -> str:
    return LABELS.get(told.decision, told.decision.replace("-", " "))


# The paragraph


def paragraph(reply: ExplainReply, now: datetime | None = None) -> str:
    """The whole session in plain sentences."""
    course = Course.of(reply)
    if course.id.startswith(DRAIN_PREFIX):
        said = _drain(course)
    elif course.first("publisher-session") is not None:
        said = _publishers(course, now)
    else:
        said = [
            _trigger(reply, course, now),
            *_numbers(course),
            _asked(course),
            *_choice(course),
            *_course(course),
            *_outcome(course),
        ]
    if reply.missing:
        said.append(f"no answer came from {listed(reply.missing)}, so that part of the story may be missing")
    return " ".join(sentence(text) for text in said if text)


def _trigger(reply: ExplainReply, course: Course, now: datetime | None) -> str:
    requested = course.requested
    if requested is None:
        told = course.first("session-candidates", "session-refused", "session-plan", "session-ended")
        if told is None:
            return f"session {course.id}: only parts of its story are remembered"
        why = because(told.reason.removeprefix("queue-depth: "))
        return f"{when(told.ago_us, now)} edge {course.source} asked for help ({why})"
    start = f"{when(requested.ago_us, now)} edge {course.source} asked for help"
    waiting = course.waiting
    if waiting is None:
        return f"{start}: {because(requested.reason.partition(';')[0])}"
    who = subscription(waiting.queue, reply.queues)
    depth, allowed = compared(waiting.depth, waiting.threshold)
    text = f"{start}: {depth} messages were waiting for {who}, "
    if waiting.threshold <= 0.0:
        text += "and its queue was growing so fast that none may wait if its deadline"
    else:
        text += f"more than the {allowed} that may wait if its deadline"
    text += f" of {seconds(waiting.deadline_s)}" if waiting.deadline_s is not None else ""
    text += " is to be kept"
    past = requested.numbers.get("queues_past", 0.0)
    if past > 1:
        text += f"; {counted(past, 'subscription')} had too much waiting in all"
    return text


def _numbers(course: Course) -> list[str]:
    """What the threshold was worked out from."""
    requested, waiting = course.requested, course.waiting
    if requested is None or waiting is None or waiting.enqueue_per_s is None or waiting.drain_per_s is None:
        return []
    said = []
    allowed, session_s = waiting.allowed_wait_s, requested.numbers.get("session_s")
    if allowed is not None:
        said.append(
            f"Of the deadline {seconds(allowed)} is left for waiting once the way from the publisher to the subscriber "
            "is taken off"
        )
    incoming, outgoing = amount(waiting.enqueue_per_s), amount(waiting.drain_per_s)
    text = f"{incoming} messages per second were coming in for it and {outgoing} going out"
    uplink = requested.numbers.get("uplink")
    if uplink is not None and uplink > 1.0:
        text += f", because {course.source} was asked to send {percent(uplink)} of what its uplink carries"
    elif uplink is not None:
        text += f", with the uplink of {course.source} used to {percent(uplink)}"
    if session_s is not None and waiting.enqueue_per_s > GROWS * waiting.drain_per_s:
        text += f"; moving somebody takes about {seconds(session_s)}, and the queue would have grown meanwhile"
    return [*said, text, *forecast_words(requested, waiting.queue)]


def _asked(course: Course) -> str:
    candidates, refused = course.first("session-candidates"), course.not_asked
    if candidates is None:
        return ""
    count = round(candidates.numbers.get("candidates", 0.0))
    verb = "was" if count == 1 else "were"
    text = f"{counted(count, 'broker')} that had room {verb} found" if count else "no broker that had room was found"
    named = [who_not(name, why) for name, why in sorted(refused.items())[:REFUSED_SAID_MAX]]
    return f"{text}; not among them: {'; '.join(named)}" if named else text


def _choice(course: Course) -> list[str]:
    planned, source = course.planned, course.source
    said = []
    for told in course.all("session-remote", "session-last-resort"):
        asked = (
            "other clusters were asked"
            if told.decision == "session-remote"
            else "busy brokers were tried too, as a last resort"
        )
        said.append(f"as {because(told.reason)}, {asked}")
    if planned is None:
        empty = course.last("session-empty")
        return [*said, f"nothing was moved: {because(empty.reason)}", _tried(course)] if empty is not None else said
    plan = planned.reason.partition(": ")[2] or planned.reason
    whole = "not out of OVERLOAD" not in planned.reason
    verdict = "that would end the danger" if whole else "that would help, but not end the danger"
    text = f"edge {source} decided to move {_plan_words(plan)}; by its estimate {verdict}"
    own = course.utilization(source, "uplink")
    if own is not None and own.before is not None and own.predicted is not None:
        text += f": its own uplink would go from {percent(own.before)} to {percent(own.predicted)}"
    others = [u for u in course.utilizations if u.broker != source and u.metric == "uplink"]
    effects = [
        f"that of {u.broker} from {percent(u.before)} to {percent(u.predicted)}"
        for u in others
        if u.before is not None and u.predicted is not None
    ]
    text += f", {listed(effects)}" if effects else ""
    factor = planned.numbers.get("source.drain_factor", 1.0)
    text += f", and what waits would drain {times(factor)} as fast" if factor > 1.005 else ""
    return [*said, text, _tried(course), _order(course)]


def _order(course: Course) -> str:
    """In which order it was tried who might go."""
    if course.waiting is None or not course.alternatives:
        return ""
    return "whoever has nothing waiting is tried first, and of those whoever may wait longest"


def _plan_words(plan: str) -> str:
    """`8 of t1 to b0; 3 of t2 to b3` as a list."""
    parts = []
    for part in plan.split("; "):
        count, _, rest = part.partition(" of ")
        pattern, _, target = rest.rpartition(" to ")
        parts.append(f"{counted(float(count), 'subscriber')} of {pattern} to {target}" if count.isdigit() else part)
    return listed(parts)


def _tried(course: Course) -> str:
    alternatives = list(course.alternatives.items())
    if not alternatives:
        return ""
    named = [why_not(what, why) for what, why in alternatives[:ALTERNATIVES_SAID_MAX]]
    more = len(alternatives) - len(named)
    rest = f"; and {counted(more, 'more alternative')}" if more > 0 else ""
    first = "tried before, and rejected" if course.planned is not None else "tried, and rejected"
    return f"{first}: {'; '.join(named)}{rest}"


def _course(course: Course) -> list[str]:
    """What was done, and how it ended."""
    refused, failed = course.last("session-refused"), course.last("session-failed")
    ended = course.last("session-ended")
    said = []
    if refused is not None:
        said.append(f"the head refused: {because(refused.reason)}")
    if failed is not None and refused is None and course.last("session-empty") is None:
        said.append(f"it came to nothing: {because(failed.reason)}")
    if failed is not None:
        wait_s = failed.numbers.get("retry_after_s")
        said += [f"the next attempt was put off by {seconds(wait_s)}"] if wait_s else []
    said += _moved_words(course.moves, _duration_s(course))
    if ended is None and failed is None and refused is None:
        said.append("it has not ended yet")
    return said


def _duration_s(course: Course) -> float | None:
    for told in reversed(course.all("session-ended")):
        for name in ("seconds", "duration_s"):
            if name in told.numbers:
                return told.numbers[name]
    return None


def _moved_words(moves: list[Moved], took_s: float | None) -> list[str]:
    moved, failed = sum(len(m.moved) for m in moves), sum(len(m.failed) for m in moves)
    if not moved and not failed:
        return []
    took = f" within {seconds(took_s)}" if took_s is not None else ""
    if not failed:
        every = "it moved" if moved == 1 else f"all {moved} moved"
        return [f"{every}{took}"]
    reasons = sorted({why for m in moves for why in m.failed.values()})
    stayed = "stayed where it was" if failed == 1 else "stayed where they were"
    return [f"{moved} moved{took}, {failed} {stayed} and lost nothing ({listed(because(why) for why in reasons)})"]


def _outcome(course: Course) -> list[str]:
    settled = course.all("stabilized")
    if not settled:
        moved = any(move.moved for move in course.moves)
        return ["what came of it is not known yet: the load has not settled"] if moved else []
    said = []
    compared = [u for u in course.utilizations if u.metric == "uplink" and u.measured is not None]
    parts = [_compared(u, first=position == 0) for position, u in enumerate(compared)]
    longest = max(told.numbers.get("after_s", 0.0) for told in settled)
    if parts:
        said.append(f"what came of it: {seconds(longest)} after the end the uplink of {', '.join(parts)}")
    source = next((told for told in settled if told.broker == course.source), None)
    return said if source is None else [*said, _backlog(course, source.numbers.get("queues_past", 0.0))]


def _backlog(course: Course, past: float) -> str:
    """What became of the queues that were too long."""
    source, left_us, ended = course.source, course.relieved_us, course.last("session-ended")
    if not past:
        return f"on {source} no queue was past its threshold any more"
    queues = f"{counted(past, 'queue')} on {source} {'was' if past == 1 else 'were'} still past the threshold then"
    again = course.asked_again
    if again is not None and ended is not None and (left_us is None or again.ago_us > left_us):
        after = seconds(round(max((ended.ago_us - again.ago_us) / 1e6, 0.0)))
        next_one = f"{after} after the end {source} asked again ({again.session})"
        return f"{queues}; that was not worked off fast enough, and {next_one}"
    if left_us is None or ended is None:
        return queues
    after = seconds(round(max((ended.ago_us - left_us) / 1e6, 0.0)))
    return f"{queues}; the backlog was worked off, and {after} after the end {source} was out of OVERLOAD"


def _compared(one: Utilization, *, first: bool) -> str:
    measured = percent(one.measured or 0.0)
    text = f"{one.broker} was at {measured}" if first else f"that of {one.broker} at {measured}"
    return text if one.predicted is None else f"{text} (predicted: {percent(one.predicted)})"


def _drain(course: Course) -> list[str]:
    edge = course.source
    said = [f"an operator had {edge} drained for maintenance"]
    targets: dict[str, int] = {}
    for move in course.moves:
        targets[move.target] = targets.get(move.target, 0) + len(move.moved)
    if any(targets.values()):
        went = listed(f"{count} to {target}" for target, count in sorted(targets.items()) if count)
        said.append(f"{counted(sum(targets.values()), 'subscription')} moved away: {went}")
    reasons = sorted({why for move in course.moves for why in move.failed.values()})
    if reasons:
        failed = sum(len(move.failed) for move in course.moves)
        said.append(
            f"{counted(failed, 'attempt')} failed and will be repeated ({listed(because(why) for why in reasons)})"
        )
    return said


def _publishers(course: Course, now: datetime | None) -> list[str]:
    began = course.first("publisher-session")
    assert began is not None
    said = [
        f"{when(began.ago_us, now)} head {began.subject} was overloaded ({because(began.reason)}) and asked its "
        "neighbours to take publishers"
    ]
    plan = course.last("publisher-plan")
    if plan is not None:
        said.append(f"its plan: {plan.reason.replace('>', ' to ')}")
        said.append(_tried(course))
    ended = course.last("publisher-session-ended")
    moved = [told.subject.replace(">", " to ") for told in course.all("publisher-moved")]
    stayed = [f"{told.subject.partition('>')[0]} ({because(told.reason)})" for told in course.all("publisher-stayed")]
    said += [f"moved: {listed(moved)}"] if moved else []
    said += [f"not moved: {listed(stayed)}"] if stayed else []
    said.append(f"it ended: {ended.reason}" if ended is not None else "it has not ended yet")
    return said


# The tables


def tables(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """The numbers behind the paragraph."""
    course = Course.of(reply)
    shown = [_trigger_table(course), _metrics_table(course), _moves_table(course), _alternatives_table(course)]
    shown.append(timeline(shortened(reply.decisions), now))
    return [table for table in shown if table is not None]


def render(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """The paragraph and the tables."""
    return [Text(paragraph(reply, now)), *tables(reply, now)]


def _trigger_table(course: Course) -> Table | None:
    requested, waiting = course.requested, course.waiting
    if requested is None or waiting is None:
        return None
    table = Table(title="why it began", title_justify="left", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    rows = [
        ("queue", waiting.queue),
        ("messages waiting", messages(waiting.depth)),
        ("messages that may wait (threshold)", messages(waiting.threshold)),
        ("coming in, predicted (λ)", _rate(waiting.enqueue_per_s)),
        ("going out, predicted (μ)", _rate(waiting.drain_per_s)),
        ("deadline", _seconds(waiting.deadline_s)),
        ("of that left for waiting (t_e)", _seconds(waiting.allowed_wait_s)),
        ("duration of a session (t_LB)", _seconds(requested.numbers.get("session_s"))),
        ("margin kept", percent(requested.numbers.get("margin", 0.0))),
        ("queues past their threshold", amount(requested.numbers.get("queues_past", 1.0))),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{amount(value)}/s"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g} s"


def _metrics_table(course: Course) -> Table | None:
    if not course.utilizations:
        return None
    table = Table(title="what was predicted, and what came of it", title_justify="left")
    for heading in ("broker", "metric"):
        table.add_column(heading)
    for heading in ("before", "predicted", "measured after"):
        table.add_column(heading, justify="right")
    for one in course.utilizations:
        values = (one.before, one.predicted, one.measured)
        table.add_row(one.broker, one.metric, *("-" if value is None else percent(value) for value in values))
    return table


def _moves_table(course: Course) -> Table | None:
    if not course.moves:
        return None
    table = Table(title="who moved", title_justify="left")
    for heading in ("pattern", "from", "to"):
        table.add_column(heading)
    table.add_column("moved", justify="right")
    table.add_column("stayed", justify="right")
    table.add_column("why")
    for move in course.moves:
        reasons = listed(sorted(set(move.failed.values())))
        table.add_row(move.pattern, move.source, move.target, str(len(move.moved)), str(len(move.failed)), reasons)
    return table


def _alternatives_table(course: Course) -> Table | None:
    rejected = {**course.not_asked, **course.alternatives}
    if not rejected:
        return None
    table = Table(title="what was rejected", title_justify="left")
    table.add_column("what")
    table.add_column("why")
    for what, why in rejected.items():
        table.add_row(what, why)
    return table


def shortened(decisions: tuple[Told, ...]) -> list[Told]:
    """What was decided several times in a row as one line, and all migrations too: a session may have a thousand."""
    shown: list[Told] = []
    for told in decisions:
        last = shown[-1] if shown else None
        moving = told.decision in ("migration-ended", "migration-failed")
        same = last is not None and last.decision == told.decision and last.reason == told.reason
        if same and last is not None and (moving or last.subject == told.subject):
            shown[-1] = last.model_copy(update={"numbers": {"times": last.numbers.get("times", 1.0) + 1.0}})
        else:
            shown.append(told)
    return shown


def timeline(decisions: list[Told], now: datetime | None) -> Table | None:
    """Who decided what, in the order of time."""
    if not decisions:
        return None
    table = Table(title="course", title_justify="left")
    table.add_column("time" if now is not None else "ago", justify="right", no_wrap=True)
    table.add_column("broker", no_wrap=True)
    table.add_column("what")
    table.add_column("why, or how")
    for told in decisions[-TIMELINE_MAX:]:
        moment = f"{told.ago_us / 1e6:.1f} s" if now is None else clock(told.ago_us, now)
        times_more = round(told.numbers.get("times", 1.0)) - 1
        about = "" if told.subject in ("", told.broker) else f"{told.subject}: "
        more = f" (and {times_more} more)" if times_more > 0 else ""
        table.add_row(moment, told.broker, label(told), f"{about}{told.reason}{more}")
    return table
