"""What each client of a live run does, and when: taken from the scenario of the simulator, second by second.

Pure: the same options give the same times, whichever process asks. Times are seconds since the start of the run. The
papers' sizes are sizes on the wire, so a body is what is left of a message when everything that AMQP adds is taken off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate_protocol.ids import publisher_id
from tidegate_protocol.names import DELIVER_EXCHANGE
from tidegate_simulator.scenario import PublisherSpec, Scenario

from ..lean.codec import delivery_overhead

INCARNATION: Final = 1_700_000_000_000
"""As long as those of the SDK, which are times: ids travel with every message."""
CONFIRM_BYTES: Final = 21
"""What an edge's uplink carries back to the head for every message that comes in, however many subscribers it has."""
BODY_BYTES_MIN: Final = 0


def due_times_s(spec: PublisherSpec, duration_s: float) -> Iterator[float]:
    """When a publisher publishes, as the simulator has it.

    What was left of the pause until the next message shrinks or grows with the rate.
    """
    rate, at_s = spec.messages_per_s, spec.starts_s
    ends_s = spec.ends_s(duration_s)
    changes = sorted(spec.changes, key=lambda change: change.at_s)
    while at_s < ends_s:
        while changes and changes[0].at_s <= at_s:
            change = changes.pop(0)
            new = spec.messages_per_s * change.factor
            at_s, rate = change.at_s + (at_s - change.at_s) * rate / new, new
        yield at_s
        at_s += 1.0 / rate


def stream_of(spec: PublisherSpec) -> str:
    """The part of a publisher's message ids before the sequence."""
    return f"{publisher_id(spec.name, INCARNATION)}:{spec.topic}"


def body_bytes(spec: PublisherSpec, publisher: str, sequence: int, subscribers: int) -> int:
    """How long a body must be for a delivery to take what the scenario says of the uplink.

    `publisher` is the id of the one that publishes. The subscribers of a topic, usually on one edge, share the confirm.
    """
    overhead = delivery_overhead(DELIVER_EXCHANGE, spec.topic, f"{publisher}:{spec.topic}:{sequence}")
    confirm = CONFIRM_BYTES / max(subscribers, 1)
    return max(round(spec.message_bytes - confirm) - overhead, BODY_BYTES_MIN)


def subscribers_of(scenario: Scenario, topic: str) -> int:
    """How many subscribers a topic has; those of `ews-burst` subscribe to topics by name."""
    return sum(spec.pattern == topic for spec in scenario.subscribers)
