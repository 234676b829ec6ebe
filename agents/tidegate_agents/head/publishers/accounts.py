"""Defence against accounts that flood, by what RabbitMQ measures: also against those that report nothing, or lies.

An account is judged by all of its connections together: messages, bytes, and messages that no queue took. Invariants:

- nobody is blamed for one measurement: `MEASUREMENTS_NEEDED` in a row have to be above a quota, each of them the
  average of seconds;
- publishers that speak our protocol are asked first, for as many measurements again. An account without such
  publishers takes no orders: it is kept out at once, for `containment_s`, by the one who may do that (`KeepOut`);
- where nobody may, that is said, with the name of the account, again after every `containment_s`;
- who has a quota is the business of `head/usage`: brokers are never kept out;
- at most `ACCOUNTS_WATCHED_MAX` accounts are watched at once, and one that keeps to its quota for `containment_s`
  is forgotten.

An account that lies in its reports is named here as well, and nothing is done to it: its reports do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.publishers import ThrottleOrder
from tidegate_protocol.decisions import (
    AccountReleased,
    Containment,
    Decision,
    Flood,
    FloodingAccount,
    FloodingPublisher,
    UntrueReports,
)

from ...kit.dispatch import Dispatch
from ...kit.memory import Recent
from ...load.metrics import AccountSample
from ...machine import HeadSampled, KeepOut, SendClient
from ...quotas import AccountQuota
from ..context import HeadContext

MEASUREMENTS_NEEDED: Final = 2
ACCOUNTS_WATCHED_MAX: Final = 1_000
UNTRUE_MAX: Final = 1_000
"""Publishers whose reports contradict what was measured, that are remembered."""
UNTRUE_S: Final = 60.0
"""For so long a publisher is named for its last untrue report; the same is not said again before."""
ASKED_MAX: Final = 1_000
"""Publishers of one account that are asked at once."""
MESSAGES_PER_S_MIN: Final = 0.1
"""The least that a publisher is asked to keep to: its recovery has to show."""


@dataclass(frozen=True, slots=True)
class _Excess:
    flood: Flood
    value: float
    limit: float


@dataclass(slots=True)
class _Watched:
    above: int = 0
    """Measurements above a quota in a row, since the last step taken against it."""
    asked: bool = False
    until_s: float = 0.0
    """Until then it is kept out, or known to be out of our reach."""
    last_above_s: float = 0.0
    found: FloodingAccount | None = None
    found_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Named:
    """A client or account that harms others, the decision that says so, and when it was made."""

    client: str
    decision: Decision
    at_s: float


class AccountDefence:
    """Watches what RabbitMQ measures of every account."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._watched: dict[str, _Watched] = {}
        self._untrue: Recent[str, Named] = Recent(UNTRUE_MAX)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(HeadSampled, self.sampled)
        dispatch.on_failure(KeepOut, self._not_kept_out)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    @property
    def culprits(self) -> tuple[Named, ...]:
        """Who floods, in the order of accounts, and then who lies."""
        floods = [
            Named(account, watched.found, watched.found_s)
            for account, watched in sorted(self._watched.items())
            if watched.found is not None
        ]
        return (*floods, *(self._untrue[name] for name in sorted(self._untrue)))

    def sampled(self, event: HeadSampled) -> None:
        for untrue in event.untrue:
            self._note_untrue(untrue)
        if event.accounts is None:
            return
        for sample in sorted(event.accounts, key=lambda one: one.account):
            self._judge(sample)

    # Floods

    def _judge(self, sample: AccountSample) -> None:
        quota = self._context.usage.quota_of(sample.account)
        if quota is None:
            return
        excess = _excess(sample, quota)
        watched = self._watched.get(sample.account)
        if excess is None:
            if watched is not None:
                watched.above = 0
            return
        if watched is None:
            if len(self._watched) >= ACCOUNTS_WATCHED_MAX:
                return  # those that are watched have to be dealt with first
            watched = self._watched[sample.account] = _Watched()
        now = self._context.now
        watched.last_above_s = now
        if now < watched.until_s:
            return  # what is measured now may have been sent before it was kept out
        watched.above += 1
        if watched.above < MEASUREMENTS_NEEDED:
            return
        watched.above = 0
        publishers = self._context.registry.publishers_of(sample.account)[:ASKED_MAX]
        if publishers and not watched.asked:
            self._ask(sample, quota, excess, watched, publishers)
        else:
            self._keep_out(sample, excess, watched)

    def _ask(
        self, sample: AccountSample, quota: AccountQuota, excess: _Excess, watched: _Watched, publishers: list[str]
    ) -> None:
        watched.asked = True
        found = self._found(sample, excess, Containment.ASKED, tuple(publishers))
        self._tell(watched, found)
        allowed = sample.messages_per_s * min(excess.limit / max(excess.value, 1e-9), 1.0)
        each = max(min(allowed, quota.messages_per_s) / len(publishers), MESSAGES_PER_S_MIN)
        containment_s = self._context.config.balancing.containment_s
        for publisher in publishers:
            told = FloodingPublisher(
                publisher, excess.flood, False, excess.value, excess.limit, each, containment_s, MEASUREMENTS_NEEDED,
                session=sample.account,
            )  # fmt: skip
            order = ThrottleOrder(
                publisher=publisher, messages_per_s=each, for_us=round(containment_s * 1e6), found=told
            )
            self._context.do(SendClient(publisher, order))

    def _keep_out(self, sample: AccountSample, excess: _Excess, watched: _Watched) -> None:
        lease_s = self._context.config.balancing.containment_s
        watched.asked, watched.until_s = False, self._context.now + lease_s
        if not self._context.config.has_warden:
            self._tell(watched, self._found(sample, excess, Containment.POWERLESS))
            return
        found = self._found(sample, excess, Containment.KEPT_OUT)
        self._tell(watched, found)
        self._context.do(KeepOut(sample.account, lease_s, found))

    def _not_kept_out(self, action: KeepOut, problem: str) -> None:
        """RabbitMQ refused: the account goes on flooding, and whoever looks has to know."""
        watched = self._watched.get(action.account)
        if watched is None or watched.found is None:
            return
        found = action.found
        self._tell(
            watched,
            FloodingAccount(
                found.account, found.flood, Containment.POWERLESS, found.value_per_s, found.limit_per_s, found.lease_s,
                found.samples, found.connections, session=found.session,
            ),
        )  # fmt: skip

    def _found(
        self, sample: AccountSample, excess: _Excess, outcome: Containment, publishers: tuple[str, ...] = ()
    ) -> FloodingAccount:
        return FloodingAccount(
            sample.account,
            excess.flood,
            outcome,
            excess.value,
            excess.limit,
            self._context.config.balancing.containment_s,
            MEASUREMENTS_NEEDED,
            sample.connections,
            publishers,
            session=sample.account,
        )

    def _tell(self, watched: _Watched, found: FloodingAccount) -> None:
        watched.found, watched.found_s = found, self._context.now
        self._context.decide(found)

    # Lies

    def _note_untrue(self, untrue: UntrueReports) -> None:
        before = self._untrue.get(untrue.publisher)
        same = before is not None and isinstance(before.decision, UntrueReports)
        if same and before.decision.reason is untrue.reason:  # type: ignore[union-attr]
            named = Named(before.client, before.decision, before.at_s)  # type: ignore[union-attr]
            if self._context.now - named.at_s < UNTRUE_S:
                return
        self._untrue[untrue.publisher] = Named(untrue.publisher, untrue, self._context.now)
        self._context.decide(untrue)

    # Time

    def _tick(self) -> None:
        now, containment_s = self._context.now, self._context.config.balancing.containment_s
        self._untrue.forget_while(lambda named: now - named.at_s >= 2.0 * UNTRUE_S)
        for account, watched in sorted(self._watched.items()):
            if now - watched.last_above_s >= containment_s and now >= watched.until_s:
                del self._watched[account]
                if watched.found is not None and watched.found.outcome is not Containment.POWERLESS:
                    self._context.decide(AccountReleased(account, containment_s, session=account))

    def validate(self) -> None:
        """Raise AssertionError if an account is watched without reason."""
        assert len(self._watched) <= ACCOUNTS_WATCHED_MAX
        self._untrue.validate()
        for account, watched in self._watched.items():
            assert watched.above < MEASUREMENTS_NEEDED, f"{account} was above its quota often enough"
            assert self._context.usage.quota_of(account) is not None, f"{account} has no quota"


def _excess(sample: AccountSample, quota: AccountQuota) -> _Excess | None:
    """The quota that is passed by most; None if none is."""
    judged = (
        _Excess(Flood.MESSAGES, sample.messages_per_s, quota.messages_per_s),
        _Excess(Flood.BYTES, sample.bytes_per_s, quota.bytes_per_s),
        _Excess(Flood.USELESS, sample.useless_per_s, quota.useless_messages_per_s),
    )
    passed = [one for one in judged if one.value > one.limit]
    return max(passed, key=lambda one: one.value / max(one.limit, 1e-9), default=None)
