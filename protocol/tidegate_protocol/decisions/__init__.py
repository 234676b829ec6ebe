"""What agents decide, as data: a closed union of frozen records, one class per kind, and their codec.

The records live in the protocol because they are read on the other side of a wire: agents make them, control messages
carry them to operators (`operations.Told`), telemetry writes them to a stream (`telemetry.DecisionMade`), and the log
holds them as JSON; the command line, the experiments and analytics read them back.

Invariants:

- a record reads `{"kind": …, <fields>}`; what is None or has its default is left out. `to_plain` and
  `from_plain` are inverse;
- `from_plain` never raises. A kind or a field that this version can't read gives `UnknownDecision`, with its kind and
  session where they can be told: a newer broker's decisions are shown and counted as unknown;
- what is written is bounded: texts by `TEXT_MAX`, lists by `ITEMS_MAX`, numbers by `RATE_MAX` (JSON has no infinity);
- `DECISIONS` is complete, because it is collected: tests fail where a class in it lacks a rendering, an enum for its
  label or a golden file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from math import isfinite
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, ValidationError

from ..parts import RATE_MAX
from . import accounts, brokers, drops, insights, links, load, moves, places, publishers, rights, sessions
from .accounts import (
    AccountReleased,
    Containment,
    FloodingAccount,
    GreedySubscriber,
    Quota,
    QuotaStage,
    QuotaWatched,
    UntrueReports,
    Untruth,
)
from .base import (
    NO_REASON,
    Cause,
    Decision,
    Effect,
    Finding,
    Hints,
    Measured,
    QueueForecast,
    Rejected,
    Rejection,
)
from .brokers import (
    AccountRefused,
    AccountsAllowed,
    AccountsOutcome,
    ActionRefused,
    BalancingSwitch,
    BalancingSwitched,
    ControlRefusal,
    Drained,
    DrainOrder,
    DrainOrdered,
    DrainWaits,
    EdgeForgotten,
    EdgePresence,
    HelloRefused,
    NeighbourPresence,
    Presence,
    RegistryOutcome,
    RegistryRead,
    RoutesRefusal,
    RoutesRefused,
)
from .drops import DropReason, DropsPurged, DropsReplayed, MessagesDropped, ReplayOutcome
from .insights import InsightEnd, InsightOver, InsightRefusal, InsightRefused, InsightTaken, InsightTold
from .links import LinkLimit, LinkLimitDiffers, LinkRelayed, MessageSetAside, RelayOutcome, SetAsideReason
from .load import (
    AlarmOutcome,
    AlarmsChanged,
    DeadlineOfQueue,
    DeadlineOutcome,
    DeadlinesJudged,
    LoadReason,
    LoadStateChanged,
    SlownessOutcome,
    SlowSubscriber,
    UplinkNarrowed,
)
from .moves import (
    AcceptanceEnded,
    AcceptEndUnheard,
    DepartureLearned,
    GuestsUnheard,
    GuestsUnheardReason,
    MigrationEnded,
    MoveBelieved,
    MoveOutcome,
    SentAfter,
    WhyNot,
)
from .places import (
    Advice,
    CollectionEnded,
    CollectionOutcome,
    EdgeScore,
    OutputListed,
    OutputOutcome,
    PlaceAbandoned,
    Placed,
    PlacementReason,
    PlaceSettled,
    Removed,
    UplinkHint,
)
from .publishers import (
    ExpectationEnded,
    ExpectationOutcome,
    Flood,
    FloodingPublisher,
    PublisherBehaves,
    PublisherExpected,
    PublisherMove,
    PublisherMoveEnded,
    PublisherOutcome,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    PublishersFull,
)
from .rights import RulesTaken, SubscriptionForbidden, SubscriptionRevoked
from .sessions import (
    ENDS,
    BundleMove,
    ClosestQueue,
    Danger,
    NotStarted,
    PlanOutcome,
    Reach,
    RemoteBroker,
    RemoteOutcome,
    RemotesAsked,
    SessionCandidates,
    SessionEnded,
    SessionFailed,
    SessionLeft,
    SessionNotStarted,
    SessionOutcome,
    SessionPlan,
    SessionPlanned,
    SessionRefusal,
    SessionRefused,
    SessionRequested,
    SessionWidened,
    Stabilized,
    StabilizedReason,
)

TEXT_MAX: Final = 300
ITEMS_MAX: Final = 128
"""Items of one list in a record as it is written."""

DECISIONS: Final[tuple[type[Decision], ...]] = tuple(
    record
    for module in (load, sessions, moves, places, publishers, accounts, brokers, insights, rights, drops, links)
    for record in vars(module).values()
    if isinstance(record, type) and issubclass(record, Decision) and record.__module__ == module.__name__
)
"""The union: every record that a module of this folder defines."""


@dataclass(frozen=True, slots=True)
class UnknownDecision(Decision):
    """A decision of another version. `decided` is its kind, as far as that can be told."""

    kind: ClassVar[str] = "unknown"

    decided: str = ""


BY_KIND: Final[Mapping[str, type[Decision]]] = {each.kind: each for each in DECISIONS}
assert len(BY_KIND) == len(DECISIONS), "two kinds of the same name"

_READABLE: Final[Mapping[str, type[Decision]]] = {**BY_KIND, UnknownDecision.kind: UnknownDecision}
"""A decision that was unknown to the broker that passes it on keeps its kind."""

LABELS: Final[frozenset[str]] = frozenset(
    {NO_REASON} | {str(member) for each in DECISIONS if each.labels is not None for member in each.labels}
)
"""Every value that `Decision.label` can have."""


_adapters: Final[dict[type[Decision], TypeAdapter[Any]]] = {}
"""Made when they are first needed: most programs read no decision."""


def to_plain(decision: Decision) -> dict[str, object]:
    """The record as JSON has it."""
    return {"kind": decision.kind, **_fields(decision)}


def from_plain(data: object) -> Decision:
    """The record that `to_plain` wrote, here or in another version; `UnknownDecision` where it can't be read."""
    if not isinstance(data, Mapping):
        return UnknownDecision(decided=str(data)[:TEXT_MAX])
    kind, session = data.get("kind"), data.get("session", "")
    found = _READABLE.get(kind) if isinstance(kind, str) else None
    if found is not None:
        try:
            read: Decision = _adapter(found).validate_python(dict(data))
            return read
        except ValidationError:
            pass  # another version's form of this kind: told as unknown below
    known_session = session[:TEXT_MAX] if isinstance(session, str) else ""
    return UnknownDecision(decided=str(kind)[:TEXT_MAX], session=known_session)


def _adapter(found: type[Decision]) -> TypeAdapter[Any]:
    adapter = _adapters.get(found)
    if adapter is None:
        adapter = _adapters[found] = TypeAdapter(found)
    return adapter


def _fields(part: Any) -> dict[str, object]:
    plain: dict[str, object] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        left_out = value is None or (value == each.default and each.default is not MISSING)
        if not left_out:
            plain[each.name] = _plain(value)
    return plain


def _plain(value: object) -> object:
    match value:
        case str():
            return str(value)[:TEXT_MAX]
        case float():
            return value if isfinite(value) else RATE_MAX if value > 0.0 else -RATE_MAX
        case tuple():
            return [_plain(item) for item in value[:ITEMS_MAX]]
        case _ if is_dataclass(value):
            return _fields(value)
        case _:
            return value


def _read(value: object) -> Decision:
    return value if isinstance(value, Decision) else from_plain(value)


def _write(decision: Decision) -> dict[str, object]:
    return to_plain(decision)


AnyDecision = Annotated[Decision, BeforeValidator(_read), PlainSerializer(_write)]
"""A decision as a field of a message or a record."""
