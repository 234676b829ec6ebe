"""What would be done now: the answer to `tidegate plan` in sentences and tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate_protocol.operations import PlanReply, QueueState, Rehearsal

from .subjects import queue_words
from .words import because, listed, percent, sentence


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
    if reply.head_state == "OVERLOAD":
        said.append(f"head {reply.head}: {reply.head_text}")
    if reply.paused:
        said.append("nothing is begun: an operator has paused balancing; `tidegate resume` switches it on again")
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}: what they would do is not known")
    return " ".join(sentence(text) for text in said if text)


def _due(edge: Rehearsal, *, paused: bool) -> list[str]:
    said = [f"edge {edge.edge} is {edge.state}: {because(edge.reason)}"]
    if edge.moves:
        said.append(f"it would move {edge.plan.partition(': ')[2] or edge.plan}")
        before, after = edge.numbers.get("source.uplink.before"), edge.numbers.get("source.uplink.after")
        if before is not None and after is not None:
            said.append(f"its uplink would go from {percent(before)} to {percent(after)}")
    else:
        said.append(f"nothing would be moved: {because(edge.plan)}")
    said += [f"but not now: {edge.blocked}"] if edge.blocked and not paused else []
    return said


def _nothing(reply: PlanReply) -> list[str]:
    if not reply.edges:
        return ["no edge has answered, so that nothing can be said"]
    reasons = {edge.reason for edge in reply.edges}
    said = ["nothing would be moved"]
    if len(reasons) == 1:
        said[0] += f": {because(reasons.pop())}"
    else:
        said += [f"{edge.edge}: {because(edge.reason)}" for edge in reply.edges]
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
    tables = []
    if edge.moves:
        moves = Table(title=f"what {edge.edge} would move", title_justify="left")
        for heading in ("subscriber", "queue", "to"):
            moves.add_column(heading)
        moves.add_column("bytes/s", justify="right")
        for move in edge.moves:
            moves.add_row(move.subscriber, str(move.number), move.target, f"{move.bytes_out_per_s:.0f}")
        tables.append(moves)
    if edge.rejected:
        rejected = Table(title="what it would not do", title_justify="left")
        rejected.add_column("what")
        rejected.add_column("why")
        for what, why in edge.rejected.items():
            rejected.add_row(what, why)
        tables.append(rejected)
    return tables
