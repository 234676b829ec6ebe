"""Whose records they are: what every record of one process starts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tidegate_protocol.operations import Role


class Header(TypedDict):
    """The fields that all records share."""

    time_us: int
    cluster: str
    broker: str


@dataclass(frozen=True, slots=True)
class Origin:
    """One broker process."""

    cluster: str
    broker: str
    role: Role
    policy: str
    run: int
    """Larger in every later run."""

    def header(self, time_us: int) -> Header:
        """What a record made at this moment starts with."""
        return {"time_us": time_us, "cluster": self.cluster, "broker": self.broker}
