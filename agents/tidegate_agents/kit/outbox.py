"""What an agent has to do, in order, and the moment at which it decides: the part of a context that every agent needs.

Invariant: every action goes through `do`, in order; every decision is both recorded and kept; a request id is never
used twice by one run; an answer that no part waits for any more is led nowhere. Knows nothing of what the parts do.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_protocol.decisions import Decision
from tidegate_protocol.messages import ControlMessage, Refusal

from ..config import REPLIES_JOINED_MAX
from ..machine import Action, CancelTimer, Record, Reply, ReplyAddress, Send, SendClient, SetTimer
from .chronicle import Chronicle


class Outbox:
    """The actions, requests and decisions of one agent."""

    def __init__(self, broker: str, incarnation: int) -> None:
        self.now = 0.0
        self.chronicle = Chronicle()
        self.requests: dict[str, tuple[str, str]] = {}
        """The part and the subject of each request whose answer is awaited."""
        self._run = f"{broker}~{incarnation}"
        self._last_request = 0
        self._last_named: dict[str, int] = {}
        self._out: list[Action] = []
        self._found: list[object] = []

    def do(self, action: Action) -> None:
        self._out.append(action)

    def take_actions(self) -> list[Action]:
        actions, self._out = self._out, []
        return actions

    def tell_parts(self, event: object) -> None:
        """Another part may want to know: it is told when the part that says so is done."""
        self._found.append(event)

    def take_found(self) -> list[object]:
        found, self._found = self._found, []
        return found

    def new_name(self, letter: str = "") -> str:
        """A name for something that begins here: no other run of this broker gives it, nor this run again. `letter`
        tells one kind of thing from another.
        """
        number = self._last_named[letter] = self._last_named.get(letter, 0) + 1
        return f"{self._run}~{letter}{number}"

    def request(self, to: str, message: ControlMessage, part: str, subject: str) -> str:
        """Send a request to a broker; its answer is led to `part`, which asked about `subject`. Returns its id."""
        request_id = self._next_request(part, subject)
        self.do(Send(to, message, request_id))
        return request_id

    def send_client(self, client: str, message: ControlMessage, part: str, subject: str) -> str:
        """The same for a client."""
        request_id = self._next_request(part, subject)
        self.do(SendClient(client, message, request_id))
        return request_id

    def _next_request(self, part: str, subject: str) -> str:
        self._last_request += 1
        request_id = f"{self._run}~{self._last_request}"
        self.requests[request_id] = (part, subject)
        return request_id

    def drop_request(self, request_id: str | None) -> None:
        """An answer to this request is of no interest any more."""
        if request_id is not None:
            self.requests.pop(request_id, None)

    def reply(self, to: ReplyAddress | Iterable[ReplyAddress | None] | None, message: ControlMessage) -> None:
        """Answer the asker, or all who asked the same; an asker that wants no answer has no address."""
        addresses = (to,) if to is None or isinstance(to, ReplyAddress) else to
        self._out.extend(Reply(address, message) for address in addresses if address is not None)

    def refuse(
        self,
        to: ReplyAddress | Iterable[ReplyAddress | None] | None,
        refusal: Refusal,
        retry_after_s: float | None = None,
    ) -> None:
        """Answer with a refusal, as made by `tidegate_protocol.rendering.refusals`; asking again may help after that
        time.
        """
        self.reply(to, refusal.model_copy(update={"retry_after_s": retry_after_s}))

    def set_timer(self, name: str, after_s: float) -> None:
        self.do(SetTimer(name, max(after_s, 0.0)))

    def cancel_timer(self, name: str) -> None:
        self.do(CancelTimer(name))

    def decide(self, decision: Decision) -> None:
        self.chronicle.add(decision, self.now)
        self.do(Record(decision))

    def validate(self) -> None:
        """Raise AssertionError if an action is left behind."""
        assert not self._out, "actions left behind"
        assert not self._found, "something that no part was told"


def joined(waiting: list[ReplyAddress], reply_to: ReplyAddress | None) -> list[ReplyAddress]:
    """All who wait for the same answer, with one more of them: the latest `REPLIES_JOINED_MAX`."""
    return waiting if reply_to is None else [*waiting, reply_to][-REPLIES_JOINED_MAX:]
