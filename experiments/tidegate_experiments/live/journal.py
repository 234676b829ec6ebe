"""What the clients of a live run write down: every publication and every delivery, as rows of a few bytes.

Rows are appended to memory while the run lasts and written to a file afterwards, so that nothing waits for a disk.
Times are microseconds of the machine's clock: all clients of a run share it. Knows nothing of what becomes of the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_delivery = struct.Struct("<HHIqqB")
_publication = struct.Struct("<HIqq")

ROWS_MAX: Final = 20_000_000
"""Half a gigabyte; more than an hour at full scale."""


class Delivery(NamedTuple):
    """The application of `subscriber` got a message. Clients are counted in the order of the scenario."""

    subscriber: int
    publisher: int
    sequence: int
    published_us: int
    arrived_us: int
    collected: int


class Publication(NamedTuple):
    """A publisher published; `due_us` is when it should have."""

    publisher: int
    sequence: int
    due_us: int
    published_us: int


class Journal:
    """Rows of both kinds."""

    def __init__(self) -> None:
        self._deliveries = bytearray()
        self._publications = bytearray()
        self.deliveries = 0

    def delivered(
        self, subscriber: int, publisher: int, sequence: int, published_us: int, arrived_us: int, collected: bool
    ) -> None:
        assert self.deliveries < ROWS_MAX
        self.deliveries += 1
        self._deliveries += _delivery.pack(subscriber, publisher, sequence, published_us, arrived_us, collected)

    def published(self, publisher: int, sequence: int, due_us: int, published_us: int) -> None:
        self._publications += _publication.pack(publisher, sequence, due_us, published_us)

    def write(self, folder: Path, name: str) -> None:
        """Two files in `folder`."""
        (folder / f"{name}.deliveries").write_bytes(self._deliveries)
        (folder / f"{name}.publications").write_bytes(self._publications)


def read_deliveries(folder: Path) -> list[Delivery]:
    """Of all workers, in the order of their arrival."""
    rows = [Delivery(*row) for data in _contents(folder, "deliveries") for row in _delivery.iter_unpack(data)]
    rows.sort(key=lambda row: row.arrived_us)
    return rows


def read_publications(folder: Path) -> list[Publication]:
    """Of all workers, in the order of their times."""
    rows = [Publication(*row) for data in _contents(folder, "publications") for row in _publication.iter_unpack(data)]
    rows.sort(key=lambda row: row.published_us)
    return rows


def _contents(folder: Path, kind: str) -> Iterator[bytes]:
    for file in sorted(folder.glob(f"*.{kind}")):
        yield file.read_bytes()
