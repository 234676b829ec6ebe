"""One sample of every kind of control message, every field filled in, and the golden files made of them.

Run this file to write the golden files anew, and look at the difference before you commit it: a changed file
means that processes of the old and the new version no longer understand each other in that field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, get_args

from tidegate_protocol import messages as m

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "control"

SUBSCRIPTION: Final = m.Subscription(
    subscriber="siren-7", number=2, pattern="alert.*.north.#", deadline_us=300_000, expires_s=600
)
CAPACITY: Final = m.Capacity(uplink_bytes_per_s=1.25e6, downlink_bytes_per_s=2.5e6, matching_per_s=4000.0)
METRICS: Final = {"uplink": m.MetricReport(value=0.93, low=0.9, high=0.95)}
PUBLISHER: Final = "buoy-3~k2f9x"

SAMPLES: Final[tuple[m.ControlMessage, ...]] = (
    m.SubscribeRequest(subscriber="siren-7", pattern="alert.*.north.#", deadline_us=300_000, expires_s=600),
    m.SubscribeReply(
        subscription=SUBSCRIPTION,
        edge="edge-1",
        url="amqp://127.0.0.1:5672/edge-1",
        queue="out.siren-7.2",
        awaiting=("head-2",),
    ),
    m.UnsubscribeRequest(subscriber="siren-7", number=2),
    m.UnsubscribeReply(subscriber="siren-7", number=2),
    m.PublisherHello(publisher=PUBLISHER, topics=("alert.wave.north", "level.wave.north")),
    m.PublisherWelcome(publisher=PUBLISHER, head="head-1", period_s=5.0),
    m.PublisherGoodbye(publisher=PUBLISHER),
    m.StatusRequest(),
    m.StatusReply(
        cluster="north",
        head="head-1",
        version="0.1.0",
        edges=(
            m.EdgeStatus(
                edge="edge-1",
                alive=True,
                draining=False,
                subscriptions=3,
                patterns=2,
                capacity=CAPACITY,
                seen_ago_s=0.5,
            ),
        ),
        neighbours=(m.NeighbourStatus(head="head-2", alive=True, needs=4, offered=2),),
        publishers=1,
    ),
    m.Refusal(reason=m.RefusalReason.NO_EDGE, message="no edge is alive", field="subscriber", retry_after_s=1.0),
    m.EdgeHello(
        edge="edge-1",
        cluster="north",
        client_url="amqp://127.0.0.1:5672/edge-1",
        link_url="amqp://127.0.0.1:5673/edge-1",
        capacity=CAPACITY,
        registry_count=3,
        registry_digest="0123456789abcdef",
        draining=True,
    ),
    m.EdgeWelcome(head="head-1", cluster="north", period_s=1.0),
    m.EdgeGoodbye(edge="edge-1"),
    m.OutputPrepare(subscription=SUBSCRIPTION),
    m.OutputReady(subscription=SUBSCRIPTION, queue="out.siren-7.2"),
    m.OutputRemove(subscriber="siren-7", number=2),
    m.OutputRemoved(edge="edge-1", subscriber="siren-7", number=2),
    m.RegistryRequest(after="out.siren-6.0"),
    m.RegistryPage(edge="edge-1", digest="0123456789abcdef", subscriptions=(SUBSCRIPTION,), after="out.siren-7.2"),
    m.RoutesUpdate(head="head-1", version=8, base=7, add=("alert.#",), remove=("alert.*.north.#",), wait_s=2.5),
    m.RoutesAccepted(head="head-2", version=8, awaiting=("head-3",)),
    m.RoutesUnknownBase(head="head-2", have=6),
    m.PieLocal(broker="edge-1", cluster="north", state=m.LoadState.HIGH, metrics=METRICS, period_s=1.0),
    m.PieGlobal(cluster="north", head="head-1", state=m.LoadState.LOW, metrics=METRICS, period_s=5.0),
)


def message_classes() -> tuple[type[m.ControlMessage], ...]:
    """Every member of the union, read from the union itself so that a new kind can't be forgotten."""
    return get_args(get_args(m.ControlMessage)[0])


def golden_text(message: m.ControlMessage) -> str:
    """What the golden file of this message holds: its wire form, laid out for people."""
    return json.dumps(json.loads(m.encode(message)), indent=2) + "\n"


if __name__ == "__main__":
    for sample in SAMPLES:
        (GOLDEN / f"{sample.kind}.json").write_text(golden_text(sample))
