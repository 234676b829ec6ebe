"""What a client knows of the servers it meets: which of them take an opening that is written at once.

Opening an AMQP connection and a consumer the usual way takes about seven round trips, because each side waits for the
other. Written at once, from the protocol header to Basic.Consume, it takes one round trip. For that, the client has to
guess what it will answer to the server's Connection.Tune.

Invariants:

- an opening written at once is byte for byte what the AMQP library writes afterwards: the library goes through its
  usual states, and its own frames are dropped because they are on their way. If one of them differs, the connection is
  given up and opened the usual way;
- a wrong guess is corrected for that address. A server that refuses such an opening altogether is opened the usual way
  for `USUAL_FOR_S`;
- the memory is bounded: the oldest address is forgotten first.

Nothing here knows connections or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX
from tidegate_protocol.amqp.methods import read_tune_ok

from .config import Address

ADDRESSES_MAX: Final = 1_000
USUAL_FOR_S: Final = 600.0
"""How long a server that refused an opening written at once is not asked again."""
FAST_SHARE: Final = 0.5
"""The share of the time for connecting after which the usual way is tried."""


@dataclass(frozen=True, slots=True)
class Tune:
    """What a client answers to Connection.Tune, besides the heartbeat. The defaults are RabbitMQ's."""

    channel_max: int = 2_047
    frame_max: int = FRAME_BYTES_MAX


class OpeningDiffers(Exception):
    """The library wants to write something else than what was written for it; `tune` if that is what it was."""

    def __init__(self, frame: bytes) -> None:
        super().__init__("the server needs another opening than the one written at once")
        self.tune = tune_of(frame)


def tune_of(frame: bytes) -> Tune | None:
    """The limits in a frame that is a Connection.TuneOk; None for any other."""
    limits = read_tune_ok(frame)
    return None if limits is None else Tune(*limits)


class Openings:
    """How to open a connection to each address; counts what came of it."""

    def __init__(self) -> None:
        self.fast = 0
        """Connections whose opening was written at once."""
        self.fallbacks = 0
        """Openings written at once that had to be done again the usual way."""
        self._tunes: dict[str, Tune] = {}
        self._usual_until: dict[str, float] = {}

    def anticipate(self, address: Address, now: float) -> Tune | None:
        """What to expect of this server; None if it is to be opened the usual way."""
        key = str(address)
        if now < self._usual_until.get(key, now):
            return None
        return self._tunes.get(key) or Tune()

    def succeeded(self) -> None:
        self.fast += 1

    def fell_back(self, address: Address, tune: Tune | None, now: float) -> None:
        """An opening at once failed and the usual way worked. `tune`: what the library answered, where that was it."""
        self.fallbacks += 1
        key = str(address)
        if tune is not None and tune != self._tunes.get(key):
            _remember(self._tunes, key, tune)
        else:
            _remember(self._usual_until, key, now + USUAL_FOR_S)


def _remember(memory: dict[str, Any], key: str, value: Any) -> None:
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > ADDRESSES_MAX:
        del memory[next(iter(memory))]
