"""Decisions about links, and messages in quarantine, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    Decision,
    LinkLimit,
    LinkLimitDiffers,
    LinkRelayed,
    MessageSetAside,
    RelayOutcome,
    SetAsideReason,
)
from ..quarantine import SetAside
from .said import Said
from .words import counted, seconds

REASONS: Final[Mapping[SetAsideReason, str]] = {
    SetAsideReason.ACCOUNT: "it names its account, which the account of the link may not pass on",
    SetAsideReason.TOO_LARGE: "it is too large",
    SetAsideReason.HEADERS_TOO_LARGE: "its headers are too large",
    SetAsideReason.KEY: "a key of its may not be written there",
    SetAsideReason.CONTENT: "its properties are refused",
    SetAsideReason.FAILURE: "RabbitMQ fails on it",
}
REMEDIES: Final[Mapping[SetAsideReason, str]] = {
    SetAsideReason.ACCOUNT: "give the account of the link the tag impersonator, then replay",
    SetAsideReason.TOO_LARGE: "set max_message_size to the same value at both ends, then replay",
    SetAsideReason.HEADERS_TOO_LARGE: "set frame_max to the same value at both ends, then replay",
    SetAsideReason.KEY: "look at the rights of the account of the link and at CC in the headers",
    SetAsideReason.CONTENT: "ask its publisher, or purge it",
    SetAsideReason.FAILURE: "look into RabbitMQ's log at the far end",
}
RELAYED: Final[Mapping[RelayOutcome, str]] = {
    RelayOutcome.PASSED: "what stopped it is behind it",
    RelayOutcome.LINK_REFUSED: "the far end refuses whatever comes over it; look at the account of the link",
    RelayOutcome.UNREACHABLE: "this process can't reach the far end; look at the address of the link",
    RelayOutcome.STANDS_STILL: "the far end neither takes nor refuses; look for an alarm there",
    RelayOutcome.LOST: "a connection was lost; it is tried again",
}
LIMITS: Final[Mapping[LinkLimit, str]] = {LinkLimit.MESSAGE: "max_message_size", LinkLimit.FRAME: "frame_max"}


def whose(account: str, publisher: str) -> str:
    """Who sent a message: the account that was checked or, failing that, what the message says of itself."""
    if account:
        return f"account {account}"
    return f"somebody who calls itself {publisher}" if publisher else "somebody unknown"


def set_aside(one: MessageSetAside) -> Said:
    size = counted(one.size_bytes, "byte")
    about = f"a message of {whose(one.account, one.publisher)} on {one.topic or 'no topic'} ({size}, {one.entry})"
    said = f" ({one.detail})" if one.detail else ""
    why = f"the RabbitMQ of {one.target} refuses it: {REASONS[one.reason]}{said}; {REMEDIES[one.reason]}"
    return Said(about, f"was set aside on the link to {one.target}", why)


def relayed(one: LinkRelayed) -> Said:
    what = f"made no progress and was carried by hand for {seconds(one.duration_s)}"
    counts = f"{counted(one.carried, 'message')} carried, {one.set_aside} set aside"
    said = f" ({one.detail})" if one.detail else ""
    return Said(f"the link to {one.target}", what, f"{RELAYED[one.outcome]}{said}; {counts}")


def limit_differs(one: LinkLimitDiffers) -> Said:
    name = LIMITS[one.reason]
    near = "more" if one.source_bytes is None else str(one.source_bytes)
    why = f"{one.source} takes {near} bytes and {one.target} takes {one.target_bytes}; set it to the same at both ends"
    return Said(f"the link from {one.source} to {one.target}", f"has two values of {name}", why)


def entry_reason(entry: SetAside) -> str:
    """Why a message in quarantine is there."""
    return f"{REASONS[entry.reason]}; {REMEDIES[entry.reason]}"


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    MessageSetAside: set_aside,
    LinkRelayed: relayed,
    LinkLimitDiffers: limit_differs,
}
