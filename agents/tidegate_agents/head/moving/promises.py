"""Load promised to brokers by migrations that run, or have ended so recently that no sample can show it yet.

Invariant: a promise counts from the moment a move is decided until it is dropped (the move came to nothing) or until
some time after it was kept. Nothing is subtracted for the part of it that samples may show already, so that a target
looks fuller than it is rather than emptier. Only where it is known how loaded the target was before (`stood`), a
promise that was kept counts on top of that load, and not on top of a sample that shows it. Knows no migration; a
promise has a key. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import PlannedMove


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
        self._stood: dict[str, BrokerLoad] = {}
        """How loaded brokers were before the first of their promises."""

    def __len__(self) -> int:
        return len(self._promises)

    def promise(self, key: str, broker: str, load: PlannedMove) -> None:
        """`broker` is about to get this load."""
        self.drop(key)
        self._promises[key] = _Promise(broker, load)
        self._by_broker.setdefault(broker, set()).add(key)

    def promised(self, broker: str) -> bool:
        return broker in self._by_broker

    def stood(self, load: BrokerLoad) -> None:
        """This is what a broker carried before anything that is promised to it now."""
        if load.broker in self._by_broker:
            self._stood[load.broker] = load

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
                self._stood.pop(promise.broker, None)

    def expire(self, now: float) -> None:
        """Forget the promises that samples show by now."""
        over = [key for key, p in self._promises.items() if p.until_s is not None and p.until_s <= now]
        for key in over:
            self.drop(key)

    def added_to(self, load: BrokerLoad, now: float) -> BrokerLoad:
        """The load of a broker with all that it was promised."""
        self.expire(now)
        promised = [self._promises[key] for key in sorted(self._by_broker.get(load.broker, ()))]
        if not promised:
            return load
        stood = self._stood.get(load.broker)

        def total(field: str, added: str) -> float:
            told: float = getattr(load, field)
            coming: float = sum(getattr(promise.load, added) for promise in promised if promise.until_s is None)
            there: float = sum(getattr(promise.load, added) for promise in promised if promise.until_s is not None)
            if stood is None:
                return told + there + coming
            before: float = getattr(stood, field)
            return max(told, min(told, before) + there) + coming

        return load.model_copy(
            update={
                "bytes_in_per_s": total("bytes_in_per_s", "bytes_in_per_s"),
                "bytes_offered_per_s": total("bytes_offered_per_s", "bytes_out_per_s"),
                "messages_in_per_s": total("messages_in_per_s", "messages_in_per_s"),
            }
        )

    def validate(self) -> None:
        """Raise AssertionError if the index disagrees with the promises."""
        indexed = {(broker, key) for broker, keys in self._by_broker.items() for key in keys}
        assert indexed == {(promise.broker, key) for key, promise in self._promises.items()}
        assert self._stood.keys() <= self._by_broker.keys()
