"""How many messages may be under way to a subscription, so that their bodies fit into a number of bytes as well.

AMQP bounds what is under way by messages only. A window of messages holds about messages × mean size bytes; the mean is
that of what came lately. Invariants: never more than the messages that were asked for, and never less than one.
"""

from __future__ import annotations

from typing import Final

OBSERVED_MIN: Final = 16
"""Before so many messages came, their mean says nothing."""
OBSERVED_MAX: Final = 4_096
"""After so many, what came before counts half: sizes change."""
WIDE_FACTOR: Final = 2.0
"""A window that holds so many times the bytes it may is made anew: doing that costs a round trip and redeliveries."""


class DeliveryWindow:
    """The window of one subscription."""

    __slots__ = ("_bytes", "_came", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        assert messages_max > 0
        assert bytes_max > 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self._came = 0
        self._bytes = 0

    def came(self, size: int) -> None:
        """A body of so many bytes was delivered."""
        self._came += 1
        self._bytes += size
        if self._came >= OBSERVED_MAX:
            self._came //= 2
            self._bytes //= 2

    @property
    def messages(self) -> int:
        """How many messages may be under way."""
        if self._came < OBSERVED_MIN or self._bytes <= 0:
            return self.messages_max
        return max(min(self.messages_max, self.bytes_max * self._came // self._bytes), 1)

    def is_too_wide(self, messages: int) -> bool:
        """Whether a window of so many messages holds far more bytes than it may."""
        return messages > WIDE_FACTOR * self.messages
