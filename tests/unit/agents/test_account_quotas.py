"""Quotas of accounts and tenants at a head: counted under any name, refused, told before they bite."""

from __future__ import annotations

from tests.support.agents_driver import subscription
from tests.support.decisions import recorded
from tests.support.parts_driver import PartsDriver
from tidegate_agents.config import HeadConfig
from tidegate_agents.head.context import HeadContext
from tidegate_agents.head.publishers.accounts import MEASUREMENTS_NEEDED, AccountDefence
from tidegate_agents.load.metrics import AccountSample, BrokerSample, Role
from tidegate_agents.machine import Action, HeadSampled, KeepOut, SendClient
from tidegate_agents.quotas import AccountQuota, account_named
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.publishers import ThrottleOrder


def context_with(
    quotas: dict[str, AccountQuota],
    tenants: dict[str, AccountQuota] | None = None,
    default: AccountQuota | None = None,
    warden: bool = True,
) -> HeadContext:
    context = HeadContext(
        HeadConfig(
            "h", "c", 1, quotas=quotas, tenant_quotas=tenants or {}, quota_default=default,
            exempt_accounts=frozenset({"guest"}), has_warden=warden,
        )
    )  # fmt: skip
    context.registry.edge("e1")
    return context


def hold(context: HeadContext, subscriber: str, number: int = 0) -> None:
    context.registry.add("e1", subscription(subscriber=subscriber, number=number, pattern=f"t{number}"))


def test_a_name_belongs_to_the_account_that_it_begins_with() -> None:
    accounts = {"siren", "buoy-north"}
    assert account_named("siren", accounts) == "siren"
    assert account_named("siren-1-a", accounts) == "siren"
    assert account_named("buoy-north-2", accounts) == "buoy-north"
    assert account_named("buoy-1", accounts) is None
    assert account_named("sirens", accounts) is None


def test_subscriptions_count_for_their_account_under_any_name() -> None:
    context = context_with({"siren": AccountQuota(subscriptions=3)})
    for number in range(3):
        assert context.usage.refuses_subscription(f"siren-{number}") is None
        hold(context, f"siren-{number}")
    use = context.usage.refuses_subscription("siren-9")
    assert use is not None
    assert (use.account, use.quota, use.used, use.limit) == ("siren", d.Quota.SUBSCRIPTIONS, 3.0, 3.0)
    assert context.usage.refuses_subscription("other") is None
    context.registry.remove("e1", "siren-0", 0)
    assert context.usage.refuses_subscription("siren-9") is None
    context.registry.validate()


def test_an_account_that_is_not_configured_has_the_default_by_the_account_that_it_named() -> None:
    context = context_with({}, default=AccountQuota(subscriptions=1))
    context.account = "someone"
    assert context.usage.refuses_subscription("a") is None
    hold(context, "a")
    assert context.usage.refuses_subscription("b") is not None
    context.account = ""
    assert context.usage.refuses_subscription("c") is None, "who it is, is not known"
    for exempt in ("guest", "broker.h", "link.h"):
        context.account = exempt
        assert context.usage.refuses_subscription(f"of-{exempt[:4]}") is None


def test_a_tenants_quota_holds_for_its_accounts_together() -> None:
    quota = AccountQuota(subscriptions=10, tenant="coast")
    context = context_with({"siren": quota, "desk": quota}, {"coast": AccountQuota(subscriptions=2)})
    hold(context, "siren")
    hold(context, "desk")
    use = context.usage.refuses_subscription("desk-2")
    assert use is not None
    assert (use.account, use.tenant, use.used) == ("", "coast", 2.0)


def test_a_quota_is_told_when_it_is_near_when_it_is_used_up_and_when_there_is_room_again() -> None:
    context = context_with({"siren": AccountQuota(publishers=10)})
    for number in range(10):
        assert context.usage.refuses_publisher(f"siren-{number}~1") is None
        context.registry.publisher_heard(f"siren-{number}~1", 100.0)
    assert context.usage.refuses_publisher("siren-x~1") is not None
    assert context.usage.refuses_publisher("siren-y~1") is not None
    told = recorded(context.take_actions(), d.QuotaWatched)
    assert [(one.outcome, one.used) for one in told] == [(d.QuotaStage.NEAR, 8.0), (d.QuotaStage.REACHED, 10.0)]
    for number in range(4):
        context.registry.publisher_gone(f"siren-{number}~1")
    context.usage.sampled(measured())
    (room,) = recorded(context.take_actions(), d.QuotaWatched)
    assert (room.outcome, room.used) == (d.QuotaStage.ROOM, 6.0)
    context.registry.validate()


def measured(*samples: AccountSample) -> HeadSampled:
    return HeadSampled(BrokerSample("h", Role.HEAD), accounts=samples)


class Watch:
    """An account of which samples are given one after another."""

    def __init__(self, **options: bool) -> None:
        self.context = context_with({"crowd": AccountQuota(messages_per_s=50.0)}, **options)  # type: ignore[arg-type]
        self.defence = AccountDefence(self.context)

    def sample(self, messages: float, bytes_per_s: float = 0.0, useless: float = 0.0) -> list[Action]:
        self.context.now += 5.0
        self.defence.sampled(measured(AccountSample("crowd", messages, bytes_per_s, useless, 1)))
        self.defence.validate()
        return self.context.take_actions()


def test_a_silent_flooder_is_kept_out_after_enough_measurements() -> None:
    watch = Watch()
    assert not watch.sample(1000.0)
    actions = watch.sample(1000.0)
    (cut,) = [action for action in actions if isinstance(action, KeepOut)]
    assert (cut.account, cut.lease_s) == ("crowd", 30.0)
    (found,) = recorded(actions, d.FloodingAccount)
    assert (found.outcome, found.flood) == (d.Containment.KEPT_OUT, d.Flood.MESSAGES)
    assert not watch.sample(1000.0), "what is measured now was sent before"
    assert [named.client for named in watch.defence.culprits] == ["crowd"]


def test_one_measurement_above_and_one_below_are_no_flood() -> None:
    watch = Watch()
    for messages in (1000.0, 10.0) * MEASUREMENTS_NEEDED:
        assert not watch.sample(messages)


def test_floods_by_size_and_by_topics_that_nobody_wants_are_floods() -> None:
    for excess in ({"bytes_per_s": 1e9}, {"useless": 5_000.0}):
        watch = Watch()
        watch.sample(10.0, **excess)
        (found,) = recorded(watch.sample(10.0, **excess), d.FloodingAccount)
        assert found.flood is (d.Flood.BYTES if "bytes_per_s" in excess else d.Flood.USELESS)


def test_publishers_of_ours_are_asked_first_and_share_the_quota() -> None:
    watch = Watch()
    for name in ("crowd-1~1", "crowd-2~1"):
        watch.context.registry.publisher_heard(name, 1e6)
    watch.sample(200.0)
    actions = watch.sample(200.0)
    orders = [a.message for a in actions if isinstance(a, SendClient) and isinstance(a.message, ThrottleOrder)]
    assert [(order.publisher, order.messages_per_s) for order in orders] == [("crowd-1~1", 25.0), ("crowd-2~1", 25.0)]
    assert not [action for action in actions if isinstance(action, KeepOut)]
    watch.sample(200.0)
    assert [action for action in watch.sample(200.0) if isinstance(action, KeepOut)], "they did not listen"


def test_without_a_warden_the_culprit_is_named_and_that_nobody_can_help() -> None:
    watch = Watch(warden=False)
    watch.sample(1000.0)
    actions = watch.sample(1000.0)
    assert not [action for action in actions if isinstance(action, KeepOut)]
    (found,) = recorded(actions, d.FloodingAccount)
    assert found.outcome is d.Containment.POWERLESS


def test_an_account_without_a_quota_is_left_alone() -> None:
    watch = Watch()
    for account in ("broker.h", "guest", "stranger"):
        for _ in range(5):
            watch.defence.sampled(measured(AccountSample(account, 1e6, 1e9)))
    assert not watch.context.take_actions()


def test_a_head_agent_refuses_by_quota() -> None:
    """The parts driver has no quotas: nobody is refused."""
    driver = PartsDriver()
    assert driver.context.usage.uses() == ()
