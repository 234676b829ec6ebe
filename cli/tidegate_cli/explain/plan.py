"""What would be done now: the answer to `tidegate plan` in sentences and tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate_protocol.decisions import Effect
from tidegate_protocol.operations import PlanReply, QueueState, Rehearsal
from tidegate_protocol.parts import LoadState, Metric
from tidegate_protocol.rendering.clauses import PLANS, bundles, cause
from tidegate_protocol.rendering.operations import doing, head_plan, why_nothing
from tidegate_protocol.rendering.words import listed, percent, sentence

from ..tables import table
from .queues import queue_words
from .rejections import rejections


def render(reply: PlanReply) -> list[RenderableType]:
    shown: list[RenderableType] = [Text(paragraph(reply))]
    shown += [table for edge in reply.edges if edge.due for table in _tables(edge)]
    return shown


def paragraph(reply: PlanReply) -> str:
    """What would be moved, or why nothing would be."""
    due = [edge for edge in reply.edges if edge.due]
    said = [text for edge in due for text in _due(edge, paused=reply.paused)]
    if not due:
        said += _nothing(reply)
    if reply.head_state is LoadState.OVERLOAD:
        said.append(f"head {reply.head}: {head_plan(reply)}")
    if reply.paused:
        said.append("nothing is begun: an operator has paused balancing; `tidegate resume` switches it on again")
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}: what they would do is not known")
    return " ".join(sentence(text) for text in said if text)


def _due(edge: Rehearsal, *, paused: bool) -> list[str]:
    said = [f"edge {edge.edge} is {edge.state}: {cause(edge.cause) if edge.cause is not None else 'something moves'}"]
    verdict = PLANS[edge.outcome] if edge.outcome is not None else "its version does not tell why"
    if edge.neighbours_first:
        said.append("in this cluster nobody has room enough: its neighbours would be asked first")
    if edge.moves:
        resort = ", if they had no room either, as a last resort" if edge.neighbours_first else ""
        said.append(f"it would move {bundles(edge.bundles)}{resort}; {verdict}")
        own = _uplink(edge)
        if own is not None and own.before is not None:
            said.append(f"its uplink would go from {percent(own.before)} to {percent(own.after)}")
    else:
        said.append(f"nothing would be moved: {verdict}")
    said += [f"but not now: {doing(edge.blocked)}"] if edge.blocked and not paused else []
    return said


def _uplink(edge: Rehearsal) -> Effect | None:
    return next((one for one in edge.effects if (one.broker, one.metric) == (edge.edge, Metric.UPLINK)), None)


def _nothing(reply: PlanReply) -> list[str]:
    if not reply.edges:
        return ["no edge has answered, so that nothing can be said"]
    reasons = {edge.edge: why_nothing(edge) for edge in reply.edges}
    said = ["nothing would be moved"]
    if len(set(reasons.values())) == 1:
        said[0] += f": {next(iter(reasons.values()))}"
    else:
        said += [f"{name}: {text}" for name, text in reasons.items()]
    closest = _closest(reply)
    if closest is not None:
        said.append(f"the closest is {queue_words(closest)}, on {closest.edge}")
    return said


def _closest(reply: PlanReply) -> QueueState | None:
    found = [edge.closest for edge in reply.edges if edge.closest is not None and edge.closest.threshold is not None]

    def share(queue: QueueState) -> float:
        threshold = queue.threshold or 0.0
        return queue.depth / threshold if threshold > 0.0 else float("inf")

    return max(found, key=share, default=None)


def _tables(edge: Rehearsal) -> list[Table]:
    moves = [(one.subscriber, str(one.number), one.target, f"{one.bytes_out_per_s:.0f}") for one in edge.moves]
    headings, title = ("subscriber", "queue", "to", ">bytes/s"), f"what {edge.edge} would move"
    tables = [table(*headings, title=title, rows=moves)] if moves else []
    return [*tables, *rejections("what it would not do", edge.rejected)]
