"""How much of what publishers report is believed: no more than RabbitMQ measured of their accounts.

A report says which topics a publisher publishes on, how much, and how far away it is; RabbitMQ can tell none of these
for single topics, so that reports are needed. But a client may report anything. Invariants:

- an account of which RabbitMQ has seen no publication has published nothing, whatever it reports. What RabbitMQ tells
  is seconds old, so that an account has `UNVERIFIED_S_MAX` of reporting until a publication shows (`Credit`). In that
  time it is believed as much as the head takes in from everybody;
- of all that an account reports, no more messages and bytes are believed than was measured of it, times
  `BURST_FACTOR`: what was measured is an average that is seconds old, and a burst shows in reports first;
- a topic on which its account may not publish is left out;
- a round trip counts up to `ROUND_TRIP_FACTOR` times what is usual among the accounts that publish, each of which has
  one vote; up to `ROUND_TRIP_S_FLOOR` always, and never more than `ROUND_TRIP_S_CAP`;
- while nothing was measured at all, as just after a start, only round trips are bounded; where only the accounts that
  send most were measured, the others are believed as much as the head takes in from everybody.

Pure. What is not believed is told as `UntrueReports`, one per publisher; but not where an honest publisher could have
said it: what was measured is seconds old, bursts are shorter, and a RabbitMQ that is busy confirms late
(`NAMED_FACTOR`, `NAMED_ROUND_TRIP_S`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate_protocol.decisions import UntrueReports, Untruth

from ...kit.memory import Recent
from ...load.metrics import AccountSample, PublisherSample

BURST_FACTOR: Final = 4.0
CLAIM_FLOOR_PER_S: Final = 10.0
"""Messages per second that are believed of an account that publishes at all: one message in a while has no rate."""
CLAIM_FLOOR_BYTES_PER_S: Final = 64_000.0
UNVERIFIED_S_MAX: Final = 20.0
"""RabbitMQ's management API tells rates of connections that are two of its samples old, five seconds each."""
UNVERIFIED_FACTOR: Final = 1.5
UNVERIFIED_BYTES_MAX: Final = 65_536.0
"""Of one message of an account that is not measured yet."""
ACCOUNTS_MAX: Final = 10_000
"""Accounts that are remembered to have reported without a publication."""
NAMED_FACTOR: Final = 10.0
"""Who reports so many times what is believed of it is named."""
ROUND_TRIP_FACTOR: Final = 4.0
ROUND_TRIP_S_FLOOR: Final = 0.5
ROUND_TRIP_S_CAP: Final = 5.0
"""A publisher further away than this can't be told from one that says so."""
NAMED_ROUND_TRIP_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one publisher says about one topic, and the account that said so; empty where none was named."""

    account: str
    sample: PublisherSample


@dataclass(frozen=True, slots=True)
class Believed:
    samples: tuple[PublisherSample, ...]
    untrue: tuple[UntrueReports, ...] = ()


class Credit:
    """For how long each account has reported publications of which RabbitMQ has seen none."""

    def __init__(self) -> None:
        self._spent_s: Recent[str, float] = Recent(ACCOUNTS_MAX)
        self._last_s: float | None = None

    def left(
        self, now_s: float, claiming: Iterable[str], measured: Mapping[str, AccountSample] | None
    ) -> frozenset[str]:
        """The accounts of those that report now whose publications may still show. Asked once per sample."""
        elapsed_s = max(now_s - self._last_s, 0.0) if self._last_s is not None else 0.0
        self._last_s = now_s
        for sample in (measured or {}).values():
            if sample.published_per_s > 0.0:
                self._spent_s.pop(sample.account, None)
        found = set()
        for account in claiming:
            if measured is not None and _allowance(account, measured).published_per_s <= 0.0:
                self._spent_s[account] = self._spent_s.get(account, 0.0) + elapsed_s
            if self._spent_s.get(account, 0.0) < UNVERIFIED_S_MAX:
                found.add(account)
        return frozenset(found)


def believed(
    claims: Iterable[Claim],
    measured: Mapping[str, AccountSample] | None,
    published_per_s: float = 0.0,
    unverified: Collection[str] = (),
    may_publish: Callable[[str, str], bool] = lambda account, topic: True,
    *,
    complete: bool = True,
    shared: Collection[str] = (),
) -> Believed:
    """What counts of `claims`. `measured`: None while nothing was. `published_per_s`: by everybody, at this moment.
    `unverified`: the accounts with credit left. `complete`: whether everybody who sends was measured.
    `shared`: accounts that brokers and clients have in common, where nobody was given one of his own.
    """
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.account, []).append(claim)
    untrue: dict[str, UntrueReports] = {}
    bound_s = _round_trip_bound_s(found, measured, shared)
    kept: list[PublisherSample] = []
    for account, said in found.items():
        samples = _allowed(account, said, may_publish, untrue)
        if measured is not None:
            unheard = account in unverified or not complete
            limits = _limits(_allowance(account, measured), published_per_s if unheard else None, complete)
            samples = _clipped(account, samples, limits, untrue)
        kept += [_near(account, sample, bound_s, untrue) for sample in samples]
    kept.sort(key=lambda sample: (sample.publisher, sample.topic))
    return Believed(tuple(kept), tuple(untrue[name] for name in sorted(untrue)))


def _allowed(
    account: str, claims: list[Claim], may_publish: Callable[[str, str], bool], untrue: dict[str, UntrueReports]
) -> list[PublisherSample]:
    kept = []
    for claim in claims:
        sample = claim.sample
        if not sample.finite or may_publish(account, sample.topic):
            kept.append(sample)
        else:
            untrue[sample.publisher] = UntrueReports(
                account, sample.publisher, Untruth.TOPIC, sample.messages_per_s, 0.0, sample.topic
            )
    return [sample for sample in kept if sample.finite]


def _allowance(account: str, measured: Mapping[str, AccountSample]) -> AccountSample:
    """What was measured of an account; of all together where a client does not name its account."""
    if account:
        return measured.get(account, AccountSample(account))
    everyone = measured.values()
    return AccountSample(
        "",
        bytes_per_s=sum(one.bytes_per_s for one in everyone),
        published_per_s=sum(one.published_per_s for one in everyone),
    )


def _limits(measured: AccountSample, published_per_s: float | None, complete: bool) -> tuple[float, float] | None:
    """Messages and bytes per second that are believed at most; None: nothing is.

    `published_per_s`: what everybody publishes, for an account of which more may show; None for the others.
    """
    limits: tuple[float, float] | None = None
    if measured.published_per_s > 0.0:
        limits = (
            max(BURST_FACTOR * measured.published_per_s, CLAIM_FLOOR_PER_S),
            max(BURST_FACTOR * measured.bytes_per_s, CLAIM_FLOOR_BYTES_PER_S),
        )
        if complete:
            return limits
    if published_per_s is None:
        return limits
    messages = max(UNVERIFIED_FACTOR * published_per_s, CLAIM_FLOOR_PER_S)
    at_least = limits or (0.0, 0.0)
    return max(messages, at_least[0]), max(messages * UNVERIFIED_BYTES_MAX, at_least[1])


def _clipped(
    account: str,
    samples: list[PublisherSample],
    limits: tuple[float, float] | None,
    untrue: dict[str, UntrueReports],
) -> list[PublisherSample]:
    messages = sum(sample.messages_per_s for sample in samples)
    bytes_per_s = sum(sample.messages_per_s * sample.message_bytes for sample in samples)
    if messages <= 0.0:
        return samples
    if limits is None:
        for one in samples:
            lie = UntrueReports(account, one.publisher, Untruth.UNMEASURED, messages, 0.0, one.topic)
            untrue.setdefault(one.publisher, lie)
        return []
    fewer = min(limits[0] / messages, 1.0)
    smaller = min(limits[1] / max(bytes_per_s * fewer, 1e-9), 1.0)
    if fewer == smaller == 1.0:
        return samples
    worst = max(samples, key=lambda one: (one.messages_per_s * one.message_bytes, one.publisher, one.topic))
    reason = Untruth.MESSAGES if fewer < 1.0 else Untruth.BYTES
    claimed, limit = (messages, limits[0]) if fewer < 1.0 else (bytes_per_s, limits[1])
    if claimed > NAMED_FACTOR * limit:
        untrue.setdefault(worst.publisher, UntrueReports(account, worst.publisher, reason, claimed, limit, worst.topic))
    return [
        replace(one, messages_per_s=one.messages_per_s * fewer, message_bytes=one.message_bytes * smaller)
        for one in samples
    ]


def _round_trip_bound_s(
    claims: Mapping[str, list[Claim]], measured: Mapping[str, AccountSample] | None, shared: Collection[str]
) -> float:
    """Each account that is measured to publish has one vote, the middle of what its publishers say, or nothing if it is
    silent; of two middles the smaller counts. While nothing was measured, every account that reports has one. A single
    vote counts where everybody shares that account.
    """
    voters = {account for account in claims if measured is None or not account}
    if measured is not None:
        voters |= {one.account for one in measured.values() if one.published_per_s > 0.0 and "." not in one.account}
    if len(voters) == 1 and not voters <= {"", *shared}:
        return ROUND_TRIP_S_FLOOR  # one account alone does not decide for those who are about to publish
    votes = []
    for account in voters:
        said = claims.get(account, ())
        trips = sorted(claim.sample.round_trip_s for claim in said if claim.sample.round_trip_s > 0.0)
        votes.append(trips[(len(trips) - 1) // 2] if trips else 0.0)
    votes.sort()
    usual_s = votes[(len(votes) - 1) // 2] if votes else 0.0
    return min(max(ROUND_TRIP_FACTOR * usual_s, ROUND_TRIP_S_FLOOR), ROUND_TRIP_S_CAP)


def _near(account: str, sample: PublisherSample, bound_s: float, untrue: dict[str, UntrueReports]) -> PublisherSample:
    if sample.round_trip_s <= bound_s:
        return sample
    if sample.round_trip_s > NAMED_ROUND_TRIP_S:
        lie = UntrueReports(account, sample.publisher, Untruth.ROUND_TRIP, sample.round_trip_s, bound_s, sample.topic)
        untrue.setdefault(sample.publisher, lie)
    return replace(sample, round_trip_s=bound_s)
