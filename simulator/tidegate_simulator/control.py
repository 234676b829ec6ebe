"""The control plane of a run: control messages as messages, over the same distances as data, and never behind data.

Every message is written to its wire form and read back, so that nothing travels that could not on a real line.
Rate mode has a subclass of the network, which leaves the wire form out. Invariants:

- a message reaches the process that runs when it arrives; a process that is not there at that moment never sees it,
  and the sender of a request is told so (`Undeliverable`). A frozen process neither sees it nor is it reported;
- a reply goes to the run of the process that asked: a successor does not get it;
- without jitter and faults messages from one to another arrive in order; faults lose, double and delay.

Decides nothing. Brokers and clients are known by their names, which differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from tidegate_agents.machine import (
    Event,
    MessageReceived,
    ReplyAddress,
    ReplyReceived,
    Undeliverable,
)
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.messages import ControlMessage, decode, encode

from .kernel import Kernel
from .observer import Observer, overriders
from .scenario import EVERYBODY, ControlSpec, Fault
from .trace import Trace

READ_REMEMBERED_MAX: Final = 1_024
"""Bytes whose message is known: signs of life are the same all the time, and messages do not change."""


class Broker(Protocol):
    """The process of a broker, as the control plane sees it."""

    name: str
    incarnation: int
    up: bool
    frozen: bool

    def post(self, event: Event) -> None: ...


class Client(Protocol):
    """A client's process. `listens_at` tells to which heads it has a control connection."""

    incarnation: int

    def listens_at(self, head: str) -> bool: ...

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None: ...

    def answered(self, request: str, message: ControlMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class _Letter:
    """A message under way. `request_id` is set where the sender wants an answer."""

    sender: str
    incarnation: int
    receiver: str
    message: ControlMessage
    request_id: str | None


DelayOf = Callable[[str, str], float]


class ControlNetwork:
    """Carries control messages between the brokers and clients that were entered."""

    def __init__(
        self, kernel: Kernel, trace: Trace, spec: ControlSpec, delay_s: DelayOf, observers: Iterable[Observer]
    ) -> None:
        self._kernel = kernel
        self._trace = trace
        self._instant = spec.instant
        self._jitter_s = 0.0 if spec.instant else spec.jitter_s
        self._delay_s = delay_s
        self._control_sent_to = overriders(observers, "control_sent")
        self._faults: list[Fault] = []
        self._brokers: dict[str, Broker] = {}
        self._clusters: dict[str, tuple[str, ...]] = {}
        """The other brokers of each broker's cluster."""
        self._clients: dict[str, Client] = {}
        self._read = lru_cache(maxsize=READ_REMEMBERED_MAX)(decode)
        self.sent = 0
        self.lost = 0
        self.doubled = 0

    def enter_broker(self, broker: Broker, cluster: tuple[str, ...]) -> None:
        """A broker, and the other brokers of its cluster."""
        self._brokers[broker.name] = broker
        self._clusters[broker.name] = cluster

    def enter_client(self, name: str, client: Client) -> None:
        """A client under the name that heads know it by."""
        self._clients[name] = client

    def _client(self, name: str) -> Client | None:
        return self._clients.get(name)

    def start_fault(self, fault: Fault) -> None:
        self._faults.append(fault)

    def end_fault(self, fault: Fault) -> None:
        self._faults.remove(fault)

    # Sending

    def send(self, sender: Broker, to: str, message: ControlMessage, request_id: str | None) -> None:
        """From a broker's process to another's."""
        self._carry(_Letter(sender.name, sender.incarnation, to, self._wire(sender.name, to, message), request_id))

    def send_client(self, sender: Broker, client: str, message: ControlMessage, request_id: str | None) -> None:
        """From a head to a client of its own. One that is not connected is known at once not to be there."""
        read = self._wire(sender.name, client, message)
        known = self._client(client)
        if known is None or not known.listens_at(sender.name):
            if request_id is not None:
                self._kernel.at(self._kernel.now, self._return, (sender.name, sender.incarnation, request_id))
            return
        letter = _Letter(sender.name, sender.incarnation, client, read, request_id)
        self._transmit(sender.name, client, self._arrive_client, letter)

    def announce(self, sender: Broker, message: PieLocal) -> None:
        """From a broker's process to all others of its cluster; nobody answers."""
        body = encode(message)
        read = self._read(body)
        for receiver in self._clusters[sender.name]:
            self._count(sender.name, receiver, message.kind, body)
            self._carry(_Letter(sender.name, sender.incarnation, receiver, read, None))

    def request(self, client: str, head: str, message: ControlMessage, request_id: str | None) -> None:
        """From a client to a head. One that is not there is silent."""
        known = self._client(client)
        assert known is not None
        self._carry(_Letter(client, known.incarnation, head, self._wire(client, head, message), request_id))

    def reply(self, sender: str, to: ReplyAddress, message: ControlMessage) -> None:
        """The answer to a request, to its sender."""
        receiver, _, incarnation = to.token.rpartition(" ")
        read = self._wire(sender, receiver, message)
        letter = _Letter(sender, int(incarnation), receiver, read, to.request)
        self._transmit(sender, receiver, self._arrive_reply, letter)

    def _wire(self, sender: str, receiver: str, message: ControlMessage) -> ControlMessage:
        """Count it, and read it back from what would be on the line."""
        body = encode(message)
        self._count(sender, receiver, message.kind, body)
        return self._read(body)

    def _count(self, sender: str, receiver: str, kind: str, body: bytes) -> None:
        now = self._kernel.now
        self.sent += 1
        self._trace.event(now, f"control {sender} > {receiver} {kind}", body)
        for control_sent in self._control_sent_to:
            control_sent(sender, receiver, kind, now)

    def _carry(self, letter: _Letter) -> None:
        self._transmit(letter.sender, letter.receiver, self._arrive, letter)

    def _transmit(self, sender: str, receiver: str, arrive: Callable[[_Letter], None], letter: _Letter) -> None:
        delay_s = 0.0 if self._instant else self._delay_s(sender, receiver)
        if self._jitter_s:
            delay_s += self._kernel.stream(f"jitter {sender}").random() * self._jitter_s
        faults = self._faults and [fault for fault in self._faults if fault.target in whom(sender, receiver)]
        copies = [delay_s]
        for fault in faults:
            copies = self._spoil(copies, fault, sender)
        for copy_s in copies:
            self._kernel.after(copy_s, arrive, letter)

    def _spoil(self, copies: list[float], fault: Fault, sender: str) -> list[float]:
        chance = self._kernel.stream(f"control {sender}")
        spoilt: list[float] = []
        for delay_s in copies:
            # All numbers are drawn whatever they decide, so that one probability does not shift another's draws.
            lost, doubled, extra, again = (chance.random() for _ in range(4))
            if lost < fault.loss:
                self.lost += 1
                continue
            spoilt.append(delay_s + extra * fault.delay_max_s)
            if doubled < fault.duplication:
                self.doubled += 1
                spoilt.append(delay_s + again * fault.delay_max_s)
        return spoilt

    # Arriving

    def _arrive(self, letter: _Letter) -> None:
        receiver = self._brokers.get(letter.receiver)
        if receiver is not None and receiver.frozen:
            return  # it waits in the queue of a process that does not read, and expires there
        if receiver is None or not receiver.up:
            if letter.request_id is not None and letter.sender in self._brokers:
                back_s = 0.0 if self._instant else self._delay_s(letter.receiver, letter.sender)
                self._kernel.after(back_s, self._return, (letter.sender, letter.incarnation, letter.request_id))
            return
        receiver.post(MessageReceived(letter.message, self._address(letter)))

    def _arrive_client(self, letter: _Letter) -> None:
        client = self._client(letter.receiver)
        if client is not None and client.listens_at(letter.sender):
            client.ordered(letter.message, self._address(letter))

    def _arrive_reply(self, letter: _Letter) -> None:
        assert letter.request_id is not None
        broker = self._brokers.get(letter.receiver)
        if broker is not None:
            if broker.up and not broker.frozen and broker.incarnation == letter.incarnation:
                broker.post(ReplyReceived(letter.request_id, letter.message))
            return
        client = self._client(letter.receiver)
        if client is not None and client.incarnation == letter.incarnation:
            client.answered(letter.request_id, letter.message)

    def _return(self, argument: tuple[str, int, str]) -> None:
        name, incarnation, request_id = argument
        broker = self._brokers[name]
        if broker.up and not broker.frozen and broker.incarnation == incarnation:
            broker.post(Undeliverable(request_id))

    @staticmethod
    def _address(letter: _Letter) -> ReplyAddress | None:
        if letter.request_id is None:
            return None
        return ReplyAddress(f"{letter.sender} {letter.incarnation}", letter.request_id)


def whom(sender: str, receiver: str) -> tuple[str, str, str]:
    """The targets of faults that hit a message. A publisher's id is its name and the number of its run."""
    return EVERYBODY, sender.partition("~")[0], receiver.partition("~")[0]
