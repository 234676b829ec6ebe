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

from tidegate_protocol.decisions import (
    PlanOutcome,
    PublisherMoveEnded,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    SessionCandidates,
    SessionEnded,
    SessionFailed,
    SessionPlan,
    SessionRefused,
    SessionWidened,
    Stabilized,
)
from tidegate_protocol.names import DRAIN_PREFIX
from tidegate_protocol.operations import ExplainReply
from tidegate_protocol.parts import Metric
from tidegate_protocol.rendering import why
from tidegate_protocol.rendering.clauses import (
    OUTCOMES,
    PLANS,
    bundles,
    cause,
    rejected,
    rejected_broker,
    with_detail,
)
from tidegate_protocol.rendering.sessions import ASKED
from tidegate_protocol.rendering.words import (
    amount,
    compared,
    counted,
    listed,
    messages,
    percent,
    seconds,
    sentence,
    times,
    when,
)

from ..tables import listing, table
from .course import Course, Moved, Utilization
from .insights import forecast_words
from .queues import subscription
from .rejections import rejections
from .timeline import timeline

ALTERNATIVES_SAID_MAX: Final = 3
"""Alternatives named in the paragraph; the table has them all."""
REFUSED_SAID_MAX: Final = 6
_LED: Final = (SessionCandidates, SessionRefused, SessionPlan, SessionEnded)
"""What only the head of a session knows of it."""
GROWS: Final = 1.01
"""A queue grows if so many times as much comes in as goes out."""

# The paragraph


def paragraph(reply: ExplainReply, now: datetime | None = None) -> str:
    """The whole session in plain sentences."""
    course = Course.of(reply)
    if course.id.startswith(DRAIN_PREFIX):
        said = _drain(course)
    elif course.first(PublisherSession) is not None:
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
        told = next((one for one in course.story if isinstance(one.record, _LED)), None)
        if told is None:
            return f"session {course.id}: only parts of its story are remembered"
        found = told.record.cause if isinstance(told.record, SessionCandidates) else None
        reason = f" ({cause(found)})" if found is not None else ""
        return f"{when(told.ago_us, now)} edge {course.source} asked for help{reason}"
    start = f"{when(requested.ago_us, now)} edge {course.source} asked for help"
    danger = course.danger
    if danger is None:
        return f"{start}: {cause(requested.decision.cause)}"
    depth, allowed = compared(danger.depth, danger.threshold)
    text = f"{start}: {depth} messages were waiting for {subscription(danger.queue, reply.queues)}, "
    if danger.threshold <= 0.0:
        text += "and its queue was growing so fast that none may wait if its deadline"
    else:
        text += f"more than the {allowed} that may wait if its deadline"
    text += f" of {seconds(danger.deadline_s)} is to be kept"
    past = requested.decision.queues_past
    return f"{text}; {counted(past, 'subscription')} had too much waiting in all" if past > 1 else text


def _numbers(course: Course) -> list[str]:
    """What the threshold was worked out from."""
    requested, danger = course.requested, course.danger
    if requested is None or danger is None:
        return []
    allowed = seconds(danger.allowed_wait_s)
    way = (
        f"Of the deadline {allowed} is left for waiting once the way from the publisher to the subscriber is taken off"
    )
    incoming, outgoing = amount(danger.enqueue_per_s), amount(danger.drain_per_s)
    text = f"{incoming} messages per second were coming in for it and {outgoing} going out"
    uplink = requested.decision.uplink
    if uplink is not None and uplink > 1.0:
        text += f", because {course.source} was asked to send {percent(uplink)} of what its uplink carries"
    elif uplink is not None:
        text += f", with the uplink of {course.source} used to {percent(uplink)}"
    if danger.enqueue_per_s > GROWS * danger.drain_per_s:
        takes = seconds(requested.decision.session_s)
        text += f"; moving somebody takes about {takes}, and the queue would have grown meanwhile"
    return [way, text, *forecast_words(requested.decision.hints, danger.queue)]


def _asked(course: Course) -> str:
    candidates, refused = course.first(SessionCandidates), course.not_asked
    if candidates is None:
        return ""
    count = candidates.decision.candidates
    verb = "was" if count == 1 else "were"
    text = f"{counted(count, 'broker')} that had room {verb} found" if count else "no broker that had room was found"
    named = [rejected_broker(one) for one in sorted(refused, key=lambda one: one.name)[:REFUSED_SAID_MAX]]
    return f"{text}; not among them: {'; '.join(named)}" if named else text


def _choice(course: Course) -> list[str]:
    planned, source = course.planned, course.source
    said = [f"as {PLANS[step.decision.plan]}, {ASKED[step.decision.reason]}" for step in course.all(SessionWidened)]
    if planned is None:
        empty = course.empty
        return [*said, f"nothing was moved: {why(empty)}", _tried(course)] if empty is not None else said
    whole = planned.outcome is not PlanOutcome.PARTLY_RELIEVED
    verdict = "that would end the danger" if whole else "that would help, but not end the danger"
    text = f"edge {source} decided to move {bundles(planned.moves)}; by its estimate {verdict}"
    own = course.uplink(source)
    if own is not None and own.before is not None and own.predicted is not None:
        text += f": its own uplink would go from {percent(own.before)} to {percent(own.predicted)}"
    effects = [
        f"that of {u.broker} from {percent(u.before)} to {percent(u.predicted)}"
        for u in course.utilizations
        if u.broker != source and u.metric == Metric.UPLINK and u.before is not None and u.predicted is not None
    ]
    text += f", {listed(effects)}" if effects else ""
    factor = planned.drain_factor or 1.0
    text += f", and what waits would drain {times(factor)} as fast" if factor > 1.005 else ""
    return [*said, text, _tried(course), _order(course)]


def _order(course: Course) -> str:
    """In which order it was tried who might go."""
    if course.danger is None or not course.alternatives:
        return ""
    return "subscribers for whom nothing waits are tried first, the longest allowed wait before the others"


def _tried(course: Course) -> str:
    alternatives = course.alternatives
    if not alternatives:
        return ""
    named = [rejected(one) for one in alternatives[:ALTERNATIVES_SAID_MAX]]
    more = len(alternatives) - len(named)
    rest = f"; and {counted(more, 'more alternative')}" if more > 0 else ""
    first = "tried before, and rejected" if course.planned is not None else "tried, and rejected"
    return f"{first}: {'; '.join(named)}{rest}"


def _course(course: Course) -> list[str]:
    """What was done, and how it ended."""
    refused, failed = course.last(SessionRefused), course.last(SessionFailed)
    ended = course.last(SessionEnded)
    said = []
    if refused is not None:
        said.append(f"the head refused: {why(refused.decision)}")
    if failed is not None and refused is None and course.empty is None:
        said.append(f"it came to nothing: {with_detail(OUTCOMES[failed.decision.outcome], failed.decision.detail)}")
    if failed is not None and failed.decision.retry_after_s:
        said.append(f"the next attempt was put off by {seconds(failed.decision.retry_after_s)}")
    took_s = next((one for step in reversed(course.all(SessionEnded)) if (one := step.decision.duration_s)), None)
    said += _moved_words(course.moves, took_s)
    if ended is None and failed is None and refused is None:
        said.append("it has not ended yet")
    return said


def _moved_words(moves: list[Moved], took_s: float | None) -> list[str]:
    moved, failed = sum(len(m.moved) for m in moves), sum(len(m.failed) for m in moves)
    if not moved and not failed:
        return []
    took = f" within {seconds(took_s)}" if took_s is not None else ""
    if not failed:
        every = "it moved" if moved == 1 else f"all {moved} moved"
        return [f"{every}{took}"]
    reasons = sorted({reason for m in moves for reason in m.failed.values()})
    stayed = "stayed where it was" if failed == 1 else "stayed where they were"
    return [f"{moved} moved{took}, {failed} {stayed} and lost nothing ({listed(reasons)})"]


def _outcome(course: Course) -> list[str]:
    settled = course.all(Stabilized)
    if not settled:
        moved = any(move.moved for move in course.moves)
        return ["what came of it is not known yet: the load has not settled"] if moved else []
    said = []
    known = [u for u in course.utilizations if u.metric == Metric.UPLINK and u.measured is not None]
    parts = [_compared(u, first=position == 0) for position, u in enumerate(known)]
    longest = max(step.decision.after_s for step in settled)
    if parts:
        said.append(f"what came of it: {seconds(longest)} after the end the uplink of {', '.join(parts)}")
    source = next((step.decision for step in settled if step.broker == course.source), None)
    return said if source is None else [*said, _backlog(course, source.queues_past)]


def _backlog(course: Course, past: int) -> str:
    """What became of the queues that were too long."""
    source, left_us, ended = course.source, course.relieved_us, course.last(SessionEnded)
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
    reasons = sorted({reason for move in course.moves for reason in move.failed.values()})
    if reasons:
        failed = sum(len(move.failed) for move in course.moves)
        said.append(f"{counted(failed, 'attempt')} failed and will be repeated ({listed(reasons)})")
    return said


def _publishers(course: Course, now: datetime | None) -> list[str]:
    began = course.first(PublisherSession)
    assert began is not None
    said = [
        f"{when(began.ago_us, now)} head {began.decision.head} was overloaded ({why(began.decision)}) and asked its "
        "neighbours to take publishers"
    ]
    plan = course.last(PublisherPlan)
    if plan is not None:
        said += [f"its plan: {why(plan.decision)}", _tried(course)]
    moves = [step.decision for step in course.all(PublisherMoveEnded)]
    moved = [f"{one.publisher} to {one.target}" for one in moves if one.moved]
    stayed = [f"{one.publisher} ({why(one)})" for one in moves if not one.moved]
    said += [f"moved: {listed(moved)}"] if moved else []
    said += [f"not moved: {listed(stayed)}"] if stayed else []
    ended = course.last(PublisherSessionEnded)
    said.append(f"it ended: {why(ended.decision)}" if ended is not None else "it has not ended yet")
    return said


# The tables


def tables(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """The numbers behind the paragraph."""
    course = Course.of(reply)
    return [
        *_trigger_table(course),
        *_metrics_table(course),
        *_moves_table(course),
        *rejections("what was rejected", [*course.not_asked, *course.alternatives]),
        *timeline(reply.decisions, now),
    ]


def render(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """The paragraph and the tables."""
    return [Text(paragraph(reply, now)), *tables(reply, now)]


def _trigger_table(course: Course) -> list[Table]:
    requested, danger = course.requested, course.danger
    if requested is None or danger is None:
        return []
    rows = [
        ("queue", danger.queue),
        ("messages waiting", messages(danger.depth)),
        ("messages that may wait (threshold)", messages(danger.threshold)),
        ("coming in, predicted (λ)", f"{amount(danger.enqueue_per_s)}/s"),
        ("going out, predicted (μ)", f"{amount(danger.drain_per_s)}/s"),
        ("deadline", f"{danger.deadline_s:.3g} s"),
        ("of that left for waiting (t_e)", f"{danger.allowed_wait_s:.3g} s"),
        ("duration of a session (t_LB)", f"{requested.decision.session_s:.3g} s"),
        ("margin kept", percent(requested.decision.margin)),
        ("queues past their threshold", str(requested.decision.queues_past)),
    ]
    return [listing(rows, title="why it began")]


def _metrics_table(course: Course) -> list[Table]:
    if not course.utilizations:
        return []
    shown = table(
        *("broker", "metric", ">before", ">predicted", ">measured after"),
        title="what was predicted, and what came of it",
    )
    for one in course.utilizations:
        values = (one.before, one.predicted, one.measured)
        shown.add_row(one.broker, one.metric, *("-" if value is None else percent(value) for value in values))
    return [shown]


def _moves_table(course: Course) -> list[Table]:
    if not course.moves:
        return []
    shown = table("pattern", "from", "to", ">moved", ">stayed", "why", title="who moved")
    for move in course.moves:
        reasons = listed(sorted(set(move.failed.values())))
        shown.add_row(move.pattern, move.source, move.target, str(len(move.moved)), str(len(move.failed)), reasons)
    return [shown]
