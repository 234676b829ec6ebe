"""Load promised to brokers by migrations that run, or have ended so recently that no sample can show it yet.

What always holds: a promise counts from the moment a move is decided until it is dropped (the move came to nothing)
or until some time after it was kept; nothing is subtracted for what may be visible already, so that a target looks
fuller than it is rather than emptier. Knows no migration; a promise has a key. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_protocol.balancing import BrokerLoad, PlannedMove


@dataclass(slots=True)
class _Promise:
    broker: str
    load: PlannedMove
    until_s: float | None = None
    """None as long as the migration runs."""


class Promises:
    """The promises of one head, by key, for whatever broker."""

    def __init__(self) -> None:
        self._promises: dict[str, _Promise] = {}
        self._by_broker: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._promises)

    def promise(self, key: str, broker: str, load: PlannedMove) -> None:
        """`broker` is about to get this load."""
        self.drop(key)
        self._promises[key] = _Promise(broker, load)
        self._by_broker.setdefault(broker, set()).add(key)

    def keep(self, key: str, until_s: float) -> None:
        """The load is there; it shows in the samples from `until_s` on."""
        if key in self._promises:
            self._promises[key].until_s = until_s

    def drop(self, key: str) -> None:
        """The load does not come."""
        promise = self._promises.pop(key, None)
        if promise is not None:
            keys = self._by_broker[promise.broker]
            keys.discard(key)
            if not keys:
                del self._by_broker[promise.broker]

    def expire(self, now: float) -> None:
        """Forget the promises that samples show by now."""
        over = [key for key, p in self._promises.items() if p.until_s is not None and p.until_s <= now]
        for key in over:
            self.drop(key)

    def added_to(self, load: BrokerLoad, now: float) -> BrokerLoad:
        """The load of a broker with all that it was promised."""
        self.expire(now)
        promised = [self._promises[key].load for key in sorted(self._by_broker.get(load.broker, ()))]
        if not promised:
            return load
        return load.model_copy(
            update={
                "bytes_in_per_s": load.bytes_in_per_s + sum(move.bytes_in_per_s for move in promised),
                "bytes_offered_per_s": load.bytes_offered_per_s + sum(move.bytes_out_per_s for move in promised),
                "messages_in_per_s": load.messages_in_per_s + sum(move.messages_in_per_s for move in promised),
            }
        )

    def validate(self) -> None:
        """Raise AssertionError if the index disagrees with the promises."""
        indexed = {(broker, key) for broker, keys in self._by_broker.items() for key in keys}
        assert indexed == {(promise.broker, key) for key, promise in self._promises.items()}
