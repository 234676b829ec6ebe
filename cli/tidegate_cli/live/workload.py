"""What each client of a live run does, and when: taken from the scenario of the simulator, second by second.

Pure: the same options give the same times, whichever process asks. Times are seconds since the start of the run. The
papers' sizes are sizes on the wire, so a body is what is left of a message when everything that AMQP adds is taken off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate_protocol.ids import publisher_id
from tidegate_protocol.names import DELIVER_EXCHANGE
from tidegate_simulator.scenario import PublisherSpec

from .codec import delivery_overhead

INCARNATION: Final = 1
BODY_BYTES_MIN: Final = 0


def due_times_s(spec: PublisherSpec, duration_s: float) -> Iterator[float]:
    """When a publisher publishes, as the simulator has it.

    What was left of the pause until the next message shrinks or grows with the rate.
    """
    rate, at_s = spec.messages_per_s, spec.starts_s
    ends_s = duration_s if spec.stops_s is None else min(spec.stops_s, duration_s)
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


def body_bytes(spec: PublisherSpec, sequence: int) -> int:
    """How long a body must be for the delivery to have the size of the scenario on the wire."""
    message_id = f"{stream_of(spec)}:{sequence}"
    return max(round(spec.message_bytes) - delivery_overhead(DELIVER_EXCHANGE, spec.topic, message_id), BODY_BYTES_MIN)
