"""From what an agent says to the words of a label: which kinds of decisions there are, and why, from fixed sets.

Agents explain themselves in sentences, with names and numbers in them; a label must not. What always holds: whatever a
decision says, its label is one of `KINDS` and one of `REASONS`, or `other`. A sentence nobody foresaw is counted as
`other`, never under its own words.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate_agents.metrics import Metric
from tidegate_agents.placement import PlacementReason

OTHER: Final = "other"

# fmt: off
KINDS: Final = frozenset({
    "accept-end-unheard", "accepted", "action-failed", "collection-failed", "departure-learned", "drain", "drain-waits",
    "drained", "edge-alive", "edge-forgotten", "edge-not-alive", "feasible-deadline", "flooding-publisher",
    "guests-unheard", "hello-refused", "infeasible-deadline", "insight-expired", "insight-over", "insight-refused",
    "insight-taken", "insight-told", "insight-withdrawn", "load-state", "migration-ended", "migration-failed",
    "move-believed", "neighbour-alive", "neighbour-not-alive", "not-accepted", "output-adopted", "output-gone",
    "paused", "place-abandoned", "place-collected", "place-settled", "placement", "publisher-behaves",
    "publisher-disconnected", "publisher-expectation-ended", "publisher-expected", "publisher-moved", "publisher-plan",
    "publisher-session", "publisher-session-ended", "publisher-stayed", "publishers-full", "rabbitmq-alarm",
    "rabbitmq-alarm-over", "registry-abandoned", "registry-read", "remote-candidates", "removal", "resumed",
    "routes-refused", "sent-after",
    "session-candidates", "session-empty", "session-ended", "session-failed", "session-last-resort", "session-left",
    "session-not-started", "session-plan", "session-planned", "session-refused", "session-remote", "session-requested",
    "session-waits", "slow-subscriber", "slow-subscriber-recovered", "stabilized", "undrain",
    "uplink-narrowed",
})
# fmt: on

_WORDS: Final = (
    # In this order: the first that is found in a sentence is its reason.
    ("sees nothing that a move would help", "no-move-helps"),
    ("no candidate can take load", "no-room"),
    ("nobody has room", "no-room"),
    ("no neighbour has room", "no-room"),
    ("no edge", "no-room"),
    ("no candidate", "no-candidate"),
    ("no move would be an improvement", "no-improvement"),
    ("nobody can be moved", "nobody-movable"),
    ("no publisher can be moved", "nobody-movable"),
    ("out of OVERLOAD already", "overload-passed"),
    ("has passed by itself", "overload-passed"),
    ("predicted out of OVERLOAD", "relieved"),
    ("predicted relieved", "partly-relieved"),
    ("balanced with", "balanced"),
    ("took none of the moves", "no-move-begun"),
    ("no move could begin", "no-move-begun"),
    ("is being drained", "draining"),
    ("drains it", "operator"),
    ("uses it again", "operator"),
    ("an operator", "operator"),
    ("is used again", "operator"),
    ("in session", "in-session"),
    ("in a session", "in-session"),
    ("stabilizing after a session", "stabilizing"),
    ("is overloaded and sends it", "overloaded"),
    ("not known well enough", "not-known-yet"),
    ("this session has ended", "session-over"),
    ("its session has ended", "session-over"),
    ("has begun anew", "head-restarted"),
    ("asked anew", "asked-anew"),
    ("nobody said that it ended", "end-unheard"),
    ("nobody ended it", "end-unheard"),
    ("not all migrations ended in time", "time-out"),
    ("no plan came in time", "time-out"),
    ("not ready in time", "time-out"),
    ("not collected in time", "time-out"),
    ("time-out", "time-out"),
    ("took too long", "time-out"),
    ("as long as it may take", "time-out"),
    ("all migrations have ended", "moves-ended"),
    ("the load has moved", "load-moved"),
    ("but not as predicted", "not-as-predicted"),
    ("is being stopped", "stopping"),
    ("head is not there", "head-absent"),
    ("process is not there", "process-absent"),
    ("process of", "process-absent"),
    ("client is not there", "client-absent"),
    ("can't reach", "client-unreachable"),
    ("does not say where it is", "client-silent"),
    ("did not say how it went on", "client-silent"),
    ("no answer", "no-answer"),
    ("does not answer", "no-answer"),
    ("no page", "no-answer"),
    ("silent", "silent"),
    ("heard of it", "heard"),
    ("unsubscribed", "unsubscribed"),
    ("new terms", "new-terms"),
    ("not on its source", "gone"),
    ("RabbitMQ lists it no more", "gone"),
    ("nothing is left on it", "done"),
    ("cancelled", "cancelled"),
    ("was lost", "connection-lost"),
    ("could not be published", "rabbitmq-refused"),
    ("could not be bound", "rabbitmq-refused"),
    ("newer than any other", "newer"),
    ("has expired", "expired"),
    ("it was valid for", "expired"),
    ("the head has none any more", "withdrawn"),
    ("no confirmed routes", "no-route"),
    ("no way to other clusters", "no-route"),
    ("not live in time", "time-out"),
    ("in time", "time-out"),
    ("markers", "no-markers"),
    ("gave no reason", "client-stayed"),
    ("publishes at the new head", "moved"),
    ("publisher_messages_per_s_max", "message-rate"),
    ("publisher_bytes_per_s_max", "byte-rate"),
    ("useless_messages_per_s_max", "useless-messages"),
    ("takes less than the uplink would give it", "slow"),
    ("keeps up again", "keeps-up"),
    ("kept to the limits", "keeps-to-limits"),
    ("can be met again", "feasible"),
    ("no time is left to wait", "infeasible"),
    ("drawn by lot", "by-lot"),
    ("entry-broker", "entry-broker"),
    ("refused", "refused"),
    ("fence was seen", "done"),
)

_METRIC: Final = re.compile(r"^(?:(?:LOW|HIGH|OVERLOAD): )?(" + "|".join(Metric) + r")\b")
_MOVED: Final = re.compile(r"^(\d+) moved, ")
_PLACEMENTS: Final = frozenset(str(reason) for reason in PlacementReason)

REASONS: Final = frozenset(
    {"all-low", "moved", "moves-ended", "nothing-moved", *_PLACEMENTS, *(str(metric) for metric in Metric)}
    | {word for _, word in _WORDS}
)


def kind_label(kind: str) -> str:
    """The label of a decision's kind."""
    return kind if kind in KINDS else OTHER


def reason_label(reason: str) -> str:
    """The label of a decision's reason."""
    metric = _METRIC.match(reason)
    if metric is not None:
        return metric[1]
    head = reason.partition(":")[0]
    if head in _PLACEMENTS or reason == "moved":
        return head
    moved = _MOVED.match(reason)
    if moved is not None:
        return "moves-ended" if int(moved[1]) else "nothing-moved"
    if reason.startswith("LOW: all metrics"):
        return "all-low"
    return next((word for text, word in _WORDS if text in reason), OTHER)
