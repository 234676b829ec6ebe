"""What clients report for telemetry: everything once, as often as the head wants, and nothing on a message's way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidegate._core.config import Limits, Timeouts
from tidegate._core.delivery import GAP_AGE_S
from tidegate._core.digests import GAP_SETTLED_S, Digester
from tidegate._core.errors import HeadSilent, Refused
from tidegate._core.inbox import Inbox
from tidegate._core.publishing import PublishingMachine
from tidegate._engine.subscriber_news import UNWANTED_S, SubscriberNews
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.latency import merged
from tidegate_protocol.parts import INTEGER_MAX
from tidegate_protocol.reports import (
    DIGESTS_PER_REPORT_MAX,
    MigrationGap,
    ReportTaken,
    SubscriberReport,
    SubscriptionDigest,
)

DEADLINE_S = 1.0


def filled(inbox: Inbox, ages_ms: list[int]) -> None:
    """Have these messages delivered and handed over, so many milliseconds after they were published."""
    ledger = inbox.open_ledger()
    for tag, age_ms in enumerate(ages_ms, start=1):
        inbox.receive(ledger, tag, "t", b"", None, None, False, 0.0)
        message = inbox.buffer.popleft()
        message.published_us, message.time_checked = 1_000_000, True
        inbox.hand_over(message, 1.0 + age_ms / 1000)


def test_every_message_is_in_exactly_one_digest() -> None:
    inbox = Inbox(DEADLINE_S, False, 100, 10)
    digester = Digester(inbox, "t", 1_000_000, 0.0)
    assert digester.digest("edge-1", 1.0) is None
    filled(inbox, [10, 20, 1_500])
    first = digester.digest("edge-1", 2.0)
    filled(inbox, [10, 3_000])
    second = digester.digest("edge-2", 5.0)
    assert first is not None
    assert second is not None
    assert (first.received, first.late, first.elapsed_us, first.edge) == (3, 1, 2_000_000, "edge-1")
    assert (second.received, second.late, second.elapsed_us, second.edge) == (2, 1, 3_000_000, "edge-2")
    assert first.latency_us_sum + second.latency_us_sum == inbox.latencies.total_us
    whole = merged([(first.buckets, first.counts), (second.buckets, second.counts)])
    assert whole == {bucket: count for bucket, count in enumerate(inbox.latencies.counts()) if count}
    assert digester.digest("edge-2", 9.0) is None


def test_absurd_ids_and_times_of_a_publisher_can_be_reported() -> None:
    inbox = Inbox(DEADLINE_S, False, 100, 10)
    digester = Digester(inbox, "t", 1_000_000, 0.0)
    ledger = inbox.open_ledger()
    far = "9" * 200
    for tag, sequence in enumerate(("0", "99999999999999999999", far), start=1):
        headers = {"tidegate-published-us": 1}
        inbox.receive(ledger, tag, "t", b"", f"p~1:t:{sequence}", headers, False, 0.0)
        inbox.hand_over(inbox.buffer.popleft(), float(1 << 50))
    digest = digester.digest("edge-1", GAP_AGE_S + 1.0)
    assert digest is not None
    assert (digest.received, digest.late, digest.missing) == (3, 3, INTEGER_MAX)
    assert 0 < digest.latency_us_sum <= INTEGER_MAX


def order(number: int) -> MigrateOrder:
    return MigrateOrder(
        migration=f"m{number}", subscriber="s", pattern="t", edge_from="edge-1", number_from=0, edge="edge-2", number=1,
        url="amqp://e", queue="q", head="h", heads=("h",), timeout_us=1,
    )  # fmt: skip


def test_the_gap_of_a_move_is_told_once_it_is_known() -> None:
    digester = Digester(Inbox(DEADLINE_S, False, 100, 10), "t", 1_000_000, 0.0)
    digester.move_began(order(1), 0.0, 3)
    assert digester.gaps(0.0, 3, True, 1.0) == [], "under way"
    digester.move_ended(True, 2.0)
    assert digester.gaps(0.1, 9, True, 2.5) == [], "may still grow"
    (gap,) = digester.gaps(0.25, 9, False, 3.5)
    assert (gap.migration, gap.source, gap.target, gap.gap_us, gap.held) == ("m1", "edge-1", "edge-2", 250_000, 6)
    assert digester.gaps(0.25, 9, False, 4.0) == []
    digester.move_began(order(2), 0.25, 9)
    digester.move_ended(False, 5.0)
    assert digester.gaps(0.25, 9, False, 6.0) == [], "it stayed where it was"


def test_a_gap_is_told_although_nothing_is_delivered_or_the_next_move_begins() -> None:
    digester = Digester(Inbox(DEADLINE_S, False, 100, 10), "t", 1_000_000, 0.0)
    digester.move_began(order(1), 0.0, 0)
    digester.move_ended(True, 1.0)
    digester.move_began(order(2), 0.125, 0)
    digester.move_ended(True, 2.0)
    assert [gap.gap_us for gap in digester.gaps(0.5, 0, True, 2.0 + GAP_SETTLED_S)] == [125_000, 500_000]


def test_publishers_tell_the_moments_of_the_times_between_publications() -> None:
    machine = PublishingMachine("buoy~1", Limits())
    for moment_ms in (0, 100, 300, 200):
        machine.admit(machine.draft("t", b"abc", None, True), 1_000_000 + moment_ms * 1_000)
    (count,) = machine.take_counts(10)
    assert (count.messages, count.bytes, count.gaps) == (4, 12, 3)
    assert count.gap_s_sum == pytest.approx(0.3), "a clock that steps back makes a gap of 0"
    assert count.gap_s2_sum == pytest.approx(0.01 + 0.04)
    machine.admit(machine.draft("t", b"abc", None, True), 1_700_000)
    (count,) = machine.take_counts(10)
    assert (count.messages, count.gaps) == (1, 1), "the first gap reaches back to the last publication"
    assert count.gap_s_sum == pytest.approx(0.5)
    assert machine.take_counts(10) == []
    machine.validate()


# Reporting


class FakeRuntime:
    """A clock that is set by hand, on asyncio."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.tasks: list[asyncio.Task[None]] = []
        self.waits: list[float | None] = []

    def now(self) -> float:
        return self.time_s

    def chance(self) -> float:
        return 0.0

    def signal(self) -> FakeSignal:
        return FakeSignal(self)

    def spawn(self, coroutine: Any, name: str) -> Any:
        self.tasks.append(asyncio.ensure_future(coroutine))
        return self.tasks[-1]


class FakeSignal:
    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Time passes at once when everybody waits."""
        for _ in range(20):
            if self._event.is_set():
                break
            await asyncio.sleep(0)
        if not self._event.is_set() and timeout_s is not None:
            self._runtime.waits.append(timeout_s)
            self._runtime.time_s += timeout_s
            return False
        await self._event.wait()
        self._event.clear()
        return True


@dataclass
class FakeControl:
    """A head's answers, one after another; the last one for good."""

    answers: list[ReportTaken | Exception]
    asked: list[SubscriberReport] = field(default_factory=list)
    told: list[SubscriberReport] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: int = 3

    def control(self, url: str) -> FakeControl:
        return self

    async def request(self, report: SubscriberReport, expect: object, timeout_s: float) -> ReportTaken:
        self.asked.append(report)
        if len(self.asked) >= self.wanted:
            self.enough.set()
            await asyncio.Event().wait()  # nothing more happens
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tell(self, report: SubscriberReport) -> None:
        self.told.append(report)


@dataclass
class FakeSubscription:
    pattern: str = "t"
    head_url: str = ""
    news: int = 1_000_000
    taken: int = 0

    def take_digest(self) -> SubscriptionDigest | None:
        if self.taken >= self.news:
            return None
        self.taken += 1
        return SubscriptionDigest(pattern=self.pattern, deadline_us=1, elapsed_us=1, received=self.taken)

    def take_gaps(self) -> list[MigrationGap]:
        return []


TAKEN = ReportTaken(number=1, wanted=True, after_us=7_000_000)
UNWANTED = ReportTaken(number=1, wanted=False, after_us=300_000_000)


async def reported(
    answers: list[ReportTaken | Exception], subscriptions: list[FakeSubscription], wanted: int = 3
) -> tuple[FakeControl, FakeRuntime, SubscriberNews]:
    control, runtime = FakeControl(answers, wanted=wanted), FakeRuntime()
    news = SubscriberNews(cast(Any, runtime), "siren", 5, cast(Any, control), Timeouts())
    for subscription in subscriptions:
        news.join(subscription)
    async with asyncio.timeout(10):
        await control.enough.wait()
    for task in runtime.tasks:
        task.cancel()
    await asyncio.gather(*runtime.tasks, return_exceptions=True)
    return control, runtime, news


async def test_reports_come_as_often_as_the_head_says() -> None:
    control, runtime, _ = await reported([TAKEN], [FakeSubscription()])
    assert [report.number for report in control.asked] == [1, 2, 3]
    assert [report.digests[0].received for report in control.asked] == [1, 2, 3]
    assert runtime.waits[-2:] == [7.0, 7.0]


async def test_a_report_that_is_not_answered_is_repeated_unchanged() -> None:
    silent = HeadSilent("amqp://head", 3.0, "it does not answer")
    control, _, _ = await reported([silent, TAKEN], [FakeSubscription()])
    assert control.asked[0] == control.asked[1]
    assert control.asked[2].number == 2


@pytest.mark.parametrize("answer", [UNWANTED, Refused("invalid", "unknown-kind", None, None)])
async def test_a_head_that_wants_none_is_asked_again_minutes_later(answer: ReportTaken | Exception) -> None:
    _, runtime, _ = await reported([answer], [FakeSubscription()], wanted=2)
    assert runtime.waits[-1] == pytest.approx(UNWANTED_S)


async def test_what_does_not_fit_into_one_report_comes_with_the_next() -> None:
    many = [FakeSubscription(pattern=f"t{n}", news=1) for n in range(2 * DIGESTS_PER_REPORT_MAX + 5)]
    control, _, _ = await reported([TAKEN], cast(list[FakeSubscription], many))
    assert [len(report.digests) for report in control.asked] == [DIGESTS_PER_REPORT_MAX, DIGESTS_PER_REPORT_MAX, 5]
    patterns = [digest.pattern for report in control.asked for digest in report.digests]
    assert sorted(patterns) == sorted(one.pattern for one in many)


async def test_at_the_end_the_last_digests_are_told_without_waiting() -> None:
    control, runtime = FakeControl([TAKEN]), FakeRuntime()
    news = SubscriberNews(cast(Any, runtime), "siren", 5, cast(Any, control), Timeouts())
    ended, lasting = FakeSubscription(pattern="ended", news=1), FakeSubscription(pattern="lasting", news=1)
    news.join(ended)
    news.join(lasting)
    news.leave(ended)
    await news.close()
    patterns = [digest.pattern for report in control.asked + control.told for digest in report.digests]
    assert sorted(patterns) == ["ended", "lasting"]
    await asyncio.gather(*runtime.tasks, return_exceptions=True)
