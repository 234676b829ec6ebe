"""Drains: an operator has an edge emptied for maintenance."""

from __future__ import annotations

from typing import Literal

from ..parts import Message, Name


class DrainRequest(Message):
    """Empty an edge for maintenance, or use it again. Asking again tells how far it is."""

    kind: Literal["drain-request"] = "drain-request"
    edge: Name
    draining: bool = True


class DrainReply(Message):
    kind: Literal["drain-reply"] = "drain-reply"
    edge: Name
    draining: bool
    left: int
    """Subscriptions that are still there."""


class DrainNotice(Message):
    """Tells an edge that it is being drained, so that its hello says so from now on, even to a head that restarts."""

    kind: Literal["drain-notice"] = "drain-notice"
    draining: bool


DrainMessage = DrainRequest | DrainReply | DrainNotice
"""The part of the union `messages.ControlMessage` that this module defines."""
