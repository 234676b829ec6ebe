"""Probes between broker processes, and what else on the control plane is for the eyes and not for the agent.

A `Switchboard` stands between the control channels and the agent's runtime: probes are answered here at once, answers
to our own probes and the reports of clients go to the sensor and to telemetry, and every other message goes on to the
agent unchanged. At most one probe per target is under way; a probe that is not answered is forgotten with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate_agents.machine import Event, MessageReceived, ReplyAddress, ReplyReceived, Undeliverable
from tidegate_protocol.messages import ControlMessage, Probe, ProbeReply, PublisherReport
from tidegate_protocol.quarantine import QuarantineRequest
from tidegate_protocol.reports import ReportTaken, SubscriberReport

from .trips import ProbedTrip

PROBE_PREFIX: Final = "probe~"
"""What ids of probes start with; those of an agent's requests never do."""
MICROSECONDS: Final = 1_000_000
UNWANTED_AFTER_US: Final = 300 * MICROSECONDS
"""When a subscriber may ask again whether its reports are wanted."""


@dataclass(slots=True)
class _ProbeTarget:
    trip: ProbedTrip
    request_id: str = ""
    sent_s: float = 0.0
    wall_sent_s: float = 0.0


class Prober:
    """Sends probes to the brokers this process speaks to, and keeps what they say."""

    def __init__(
        self, targets: Mapping[str, Callable[[ControlMessage, str], None]], clock: Callable[[], float]
    ) -> None:
        """`targets`: how a request with an id is sent, by name of the broker. `clock`: monotonic."""
        self._send = dict(targets)
        self._clock = clock
        self._targets = {name: _ProbeTarget(ProbedTrip()) for name in self._send}
        self._count = 0
        self.make: Callable[[], Probe] = Probe
        """Says what a probe tells of its sender."""

    def probe(self) -> None:
        """Send one probe to each."""
        for name, target in self._targets.items():
            self._count += 1
            target.request_id = f"{PROBE_PREFIX}{name}~{self._count}"
            target.sent_s, target.wall_sent_s = self._clock(), time.time()
            self._send[name](self.make(), target.request_id)

    def answered(self, request_id: str, message: ControlMessage) -> None:
        """Take an answer; a late one is of no use."""
        target = self._targets.get(request_id.removeprefix(PROBE_PREFIX).rpartition("~")[0])
        if target is None or target.request_id != request_id or not isinstance(message, ProbeReply):
            return
        target.request_id = ""
        target.trip.answered(target.sent_s, self._clock(), target.wall_sent_s, message.clock_us / MICROSECONDS)

    @property
    def trips(self) -> Mapping[str, ProbedTrip]:
        """What is known, by name of the broker."""
        return {name: target.trip for name, target in self._targets.items()}

    @property
    def round_trips_s(self) -> dict[str, float]:
        """Of those that have answered."""
        trips = {name: target.trip.round_trip_s for name, target in self._targets.items()}
        return {name: trip_s for name, trip_s in trips.items() if trip_s is not None}


class Switchboard:
    """Where control channels post events; hands each to the part that it is for."""

    def __init__(self, agent: Callable[[Event], None]) -> None:
        self._agent = agent
        self.reply: Callable[[ReplyAddress, ControlMessage], None] = _nobody
        self.prober: Prober | None = None
        self.reported: Callable[[PublisherReport, str], None] = _ignored
        """Takes the report of a publisher and the account that sent it."""
        self.probed: Callable[[Probe], None] = _unheard
        """Learns what other brokers say of themselves."""
        self.quarantined: Callable[[QuarantineRequest, ReplyAddress], None] = _no_quarantine
        """Answers what operators ask of the quarantine; an edge has none, and operators do not ask it."""
        self.subscriber_reported: Callable[[SubscriberReport], ReportTaken] | None = None
        """Takes the reports of subscribers; None on an edge, to which they are not sent."""

    def post(self, event: Event) -> None:
        """Take one event."""
        match event:
            case MessageReceived(message=Probe() as probe, reply_to=address):
                self.probed(probe)
                if address is not None:
                    self.reply(address, ProbeReply(clock_us=round(time.time() * MICROSECONDS)))
            case MessageReceived(message=PublisherReport() as report, account=account):
                self.reported(report, account)
            case MessageReceived(message=SubscriberReport() as digests, reply_to=address):
                self._take(digests, address)
            case MessageReceived(message=QuarantineRequest() as request, reply_to=address) if address is not None:
                self.quarantined(request, address)
            case ReplyReceived(request_id=request_id, message=message) if request_id.startswith(PROBE_PREFIX):
                if self.prober is not None:
                    self.prober.answered(request_id, message)
            case Undeliverable(request_id=request_id) if request_id.startswith(PROBE_PREFIX):
                pass  # nobody there: nothing is learned from this one
            case _:
                self._agent(event)

    def _take(self, report: SubscriberReport, address: ReplyAddress | None) -> None:
        if self.subscriber_reported is not None:
            answer = self.subscriber_reported(report)
        else:
            answer = ReportTaken(number=report.number, wanted=False, after_us=UNWANTED_AFTER_US)
        if address is not None:
            self.reply(address, answer)


def _nobody(address: ReplyAddress, message: ControlMessage) -> None:
    """Until a control channel is there."""


def _unheard(probe: Probe) -> None:
    """Where nobody forwards to those who probe."""


def _no_quarantine(request: QuarantineRequest, address: ReplyAddress) -> None:
    """Where nothing is set aside."""


def _ignored(report: PublisherReport, account: str) -> None:
    """What publishers report to a broker that has none."""
