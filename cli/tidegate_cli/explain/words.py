"""Numbers and names as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidegate_protocol.names import OUTPUT_PREFIX
from tidegate_protocol.operations import QueueState

LISTED_MAX: Final = 6
"""Names given one by one in a sentence; of more, only how many there are."""


def percent(share: float) -> str:
    """A utilization; it may pass 100 %."""
    return f"{100.0 * share:.1f} %" if 0.0 < share < 0.095 else f"{100.0 * share:.0f} %"


def amount(value: float) -> str:
    """A number of messages or a rate: no more digits than mean something."""
    if abs(value) >= 100.0 or value == round(value):
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def messages(value: float) -> str:
    """How many wait, or may: estimates, so that below ten one digit after the point is enough."""
    return f"{value:.0f}" if abs(value) >= 9.95 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def compared(depth: float, limit: float) -> tuple[str, str]:
    """What waits and what may: with so many digits that they differ."""
    whole = messages(depth), messages(limit)
    return whole if whole[0] != whole[1] else (f"{depth:.4g}", f"{limit:.4g}")


def seconds(value: float) -> str:
    if abs(value) >= 120.0:
        return f"{value / 60.0:.0f} min"
    if abs(value) >= 20.0 or value == round(value):
        return f"{value:.0f} s"
    return f"{value:.2g} s"


def times(value: float) -> str:
    return f"{value:.2f} times"


def counted(number: float, one: str, many: str | None = None) -> str:
    """`1 subscriber`, `2 subscribers`."""
    plural = many if many is not None else f"{one}s"
    return f"{number:.0f} {one if round(number) == 1 else plural}"


def listed(names: Iterable[str], joined_by: str = "and") -> str:
    """`a, b and c`."""
    found = list(names)
    if len(found) > LISTED_MAX:
        found = [*found[: LISTED_MAX - 1], f"{len(found) - LISTED_MAX + 1} more"]
    if len(found) < 2:
        return "".join(found)
    return f"{', '.join(found[:-1])} {joined_by} {found[-1]}"


def when(ago_us: int, now: datetime | None) -> str:
    """`at 14:03:22 (22 s ago)`; without a clock only how long ago."""
    ago_s = ago_us / 1e6
    if now is None:
        return f"{seconds(round(ago_s))} ago"
    return f"at {clock(ago_us, now)} ({seconds(round(ago_s))} ago)"


def clock(ago_us: int, now: datetime) -> str:
    """The time of day of something that was so long ago."""
    return (now - timedelta(microseconds=ago_us)).strftime("%H:%M:%S")


def subscription(queue: str, known: Sequence[QueueState] = ()) -> str:
    """The subscription behind a queue: by its subscriber and, if that is known, its topic pattern."""
    name = queue.removeprefix(OUTPUT_PREFIX).rpartition(".")[0] or queue
    pattern = next((one.pattern for one in known if one.queue == queue), None)
    return f"{name} (subscribed to {pattern})" if pattern is not None else name


def sentence(text: str) -> str:
    """With a capital at its start and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?' else '.'}"


_NOT_LOW: Final = re.compile(
    r"^would (?:not stay LOW|be overloaded): (?P<metric>\S+) (?P<value>[-+.\de]+) [≥>] (?P<limit>[-+.\de]+)$"
)
_VALUE: Final = re.compile(r"\b(?P<metric>uplink|downlink|matching) (?P<value>[-+.\de]+) [≥>] (?P<limit>[-+.\de]+)")
_STATE: Final = re.compile(r"^(?P<state>LOW|HIGH|OVERLOAD): (?P<why>.*)$")
_DEPTH: Final = re.compile(r"queue-depth of (?P<queue>\S+) (?P<value>[-+.\de]+) > (?P<limit>[-+.\de]+)")
_REPORTED: Final = {
    "reported HIGH": "which was too busy itself (HIGH)",
    "reported OVERLOAD": "which was overloaded itself",
    "reported N/A": "which takes no load now (N/A)",
    "in a session, or stabilizing": "which was in a session of its own, or had just been",
    "its load is HIGH": "which had become too busy itself (HIGH)",
    "its load is OVERLOAD": "which had become overloaded itself",
    "did not tell its load in time": "which did not tell its load in time",
    "its process is not there": "whose process was not there",
}


def because(reason: str) -> str:
    """A reason of an agent, with its comparisons as a person reads them."""
    state = _STATE.match(reason)
    if state is not None:
        return f"{state['state']}, because {because(state['why'])}"
    reason = _VALUE.sub(_utilized, reason)
    reason = _DEPTH.sub(_waiting, reason.removeprefix("queue-depth: "))
    return reason.replace(" ≥ ", " is not below ").replace(" > ", " is above ").replace(" ≤ ", " is not above ")


def _utilized(match: re.Match[str]) -> str:
    value, limit = percent(float(match["value"])), percent(float(match["limit"]))
    return f"its {match['metric']} is at {value}, not below {limit}"


def _waiting(match: re.Match[str]) -> str:
    depth, limit = float(match["value"]), float(match["limit"])
    waiting, allowed = compared(depth, limit)
    allowed = f"more than the {allowed} that may" if limit > 0.0 else "where none may"
    return f"{waiting} messages wait for {subscription(match['queue'])}, {allowed}"


def who_not(broker: str, why: str) -> str:
    """A broker that could not help, and why."""
    return f"{broker}, {_REPORTED.get(why, because(why))}"


def could_not_help(why: str) -> str:
    """The same reason where the broker is spoken of as `it`."""
    text = _REPORTED.get(why)
    if text is None:
        return because(why)
    return text.replace("which ", "it ", 1).replace("whose ", "its ", 1)


def why_not(what: str, why: str) -> str:
    """An alternative that was rejected: `<pattern> to <broker>`, or a name alone."""
    pattern, _, target = what.rpartition(" to ")
    match = _NOT_LOW.match(why)
    if pattern and match is not None:
        value, limit = percent(float(match["value"])), percent(float(match["limit"]))
        return f"{pattern} could not go to {target}, whose {match['metric']} would then be at {value} (limit {limit})"
    if pattern:
        return f"{pattern} could not go to {target}: {because(why)}"
    return f"{what}: {because(why)}"
