"""Who may name accounts, as a head decides it, and which links lose them; whose control messages were refused."""

from __future__ import annotations

from typing import TypeVar

from tests.support.agents_driver import Driver, replies, sent
from tidegate_agents.config import HeadConfig, NeighbourConfig
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.kit import refused
from tidegate_agents.machine import (
    Action,
    AllowAccounts,
    ControlRefused,
    EnsureLink,
    LinkChecked,
    LinkKind,
    Record,
    Started,
    TimerFired,
)
from tidegate_protocol.decisions import AccountRefused, AccountsAllowed, AccountsOutcome, ControlRefusal
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeHello,
    Passing,
    PublisherHello,
    PublisherWelcome,
    RoutesUpdate,
    decode,
    encode,
)
from tidegate_protocol.operations import (
    Explained,
    ExplainReply,
    ExplainRequest,
    OverviewReply,
    OverviewRequest,
)

A = TypeVar("A", bound=Action)


def of(kind: type[A], actions: list[Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def refusals(actions: list[Action]) -> list[AccountRefused]:
    return [one.decision for one in of(Record, actions) if isinstance(one.decision, AccountRefused)]


def told(actions: list[Action], neighbour: str) -> bool | None:
    """What the last update says to a neighbour."""
    update = decode(encode(sent(actions, RoutesUpdate, neighbour)[-1].message))
    assert isinstance(update, RoutesUpdate)
    return update.accounts_passed.known


class Head(Driver):
    """A head that checks accounts, after a predecessor that let them be named, or did not."""

    def __init__(self, *neighbours: str, edges: tuple[str, ...] = (), allowed: bool = False) -> None:
        super().__init__(*neighbours)
        names = tuple(NeighbourConfig(name, f"amqp://{name}") for name in neighbours)
        self.agent = HeadAgent(HeadConfig("h", "c", 7, names, checked_accounts=True))
        self.first = self.give(Started(dict.fromkeys(edges, frozenset()), accounts_allowed=allowed))

    def tell(self, message: ControlMessage) -> list[Action]:
        """As it comes over the wire, which leaves out what is None."""
        return super().tell(decode(encode(message)))

    def edge(self, name: str, passes: bool | None) -> list[Action]:
        return self.tell(
            EdgeHello(
                edge=name, cluster="c", client_url=f"amqp://{name}:1", link_url=f"amqp://{name}:2", registry_count=0,
                registry_digest="0", accounts_passed=Passing.of(passes),
            )
        )  # fmt: skip

    def neighbour(self, name: str, passes: bool | None) -> list[Action]:
        return self.tell(RoutesUpdate(head=name, version=1, wait_s=0, accounts_passed=Passing.of(passes)))

    @property
    def allowed(self) -> bool:
        (welcome,) = replies(self.tell(PublisherHello(publisher="p~1")), PublisherWelcome)
        return bool(welcome.checked_accounts)


def test_until_all_links_are_known_what_a_predecessor_allowed_holds() -> None:
    for allowed in (False, True):
        head = Head("n1", edges=("e1", "e2"), allowed=allowed)
        assert not of(AllowAccounts, head.first)
        found = [
            *head.edge("e1", True),
            *head.edge("e2", None),
            *head.neighbour("n1", None),
            *head.give(LinkChecked("n1", True)),
            *head.tick(),
        ]
        assert not of(AllowAccounts, found)
        assert head.allowed is allowed
        head.edge("e2", True)
        last = head.neighbour("n1", True)
        assert of(AllowAccounts, last) == ([] if allowed else [AllowAccounts(True)])
        assert head.allowed


def test_one_link_that_is_known_not_to_pass_accounts_is_enough() -> None:
    for where in ("edge", "neighbour", "behind it"):
        head = Head("n1", edges=("e1",), allowed=True)
        if where == "edge":
            found = head.edge("e1", False)
        elif where == "neighbour":
            found = head.give(LinkChecked("n1", False))
        else:
            found = head.neighbour("n1", False)
        assert of(AllowAccounts, found) == [AllowAccounts(False)]
        name = "e1" if where == "edge" else "n1"
        assert Record(AccountsAllowed("h", AccountsOutcome.WITHHELD, (name,))) in found
        assert not head.allowed


def test_a_link_that_does_not_pass_accounts_writes_its_own_over_them_from_then_on() -> None:
    head = Head("n1")
    assert EnsureLink("n1", LinkKind.HEAD, "amqp://n1", None) in head.first
    assert of(EnsureLink, head.give(LinkChecked("n1", False))) == [EnsureLink("n1", LinkKind.HEAD, "amqp://n1", False)]
    assert not of(EnsureLink, head.give(LinkChecked("n1", False)))
    assert of(EnsureLink, head.give(LinkChecked("n1", True))) == [EnsureLink("n1", LinkKind.HEAD, "amqp://n1", True)]
    url = "amqp://e1:2"
    for passes in (None, False, True):
        assert of(EnsureLink, head.edge("e1", passes)) == [EnsureLink("e1", LinkKind.EDGE, url, passes)]
    assert not of(EnsureLink, head.edge("e1", None))


def test_a_neighbour_is_told_what_holds_here_and_behind_us_but_not_what_it_said_itself() -> None:
    head = Head("n1", "n2", edges=("e1",))

    assert (told(head.first, "n1"), told(head.first, "n2")) == (None, None)
    accounts = head.agent._context.accounts
    head.edge("e1", True)
    for name in ("n1", "n2"):
        head.give(LinkChecked(name, True))
    assert (accounts.passing("n1"), accounts.passing("n2")) == (None, None)
    head.neighbour("n2", False)
    assert (accounts.passing("n1"), accounts.passing("n2")) == (False, None)
    head.neighbour("n1", True)
    assert (accounts.passing("n1"), accounts.passing("n2"), accounts.passing()) == (False, True, False)
    head.neighbour("n2", True)
    assert accounts.passing() is True
    assert told(head.give(TimerFired("update n1")), "n1") is True, "what is sent again says what holds now"


def test_where_accounts_are_not_checked_nothing_is_allowed_and_links_are_left_alone() -> None:
    driver = Driver("n1")
    assert EnsureLink("n1", LinkKind.HEAD, "amqp://n1", None) in driver.first
    driver.agent = HeadAgent(HeadConfig("h", "c", 8))
    assert of(AllowAccounts, driver.give(Started(accounts_allowed=True))) == [AllowAccounts(False)]


# Refused accounts


def test_a_refused_account_is_a_culprit_by_reason_and_decided_once_in_a_while() -> None:
    head = Head()
    first = head.give(ControlRefused("rival", "not-yours", "rival may not speak for buoy"))
    again = head.give(ControlRefused("rival", "not-yours", "rival may not speak for siren"))
    other = head.give(ControlRefused("rival", "dead-lettered", "came by a detour"))
    odd = head.give(ControlRefused("", "invalid-json", "no JSON"))
    decided = [one for actions in (first, again, other, odd) for one in refusals(actions)]
    assert [(one.account, one.reason, one.messages) for one in decided] == [
        ("rival", ControlRefusal.NOT_YOURS, 1),
        ("rival", ControlRefusal.DEAD_LETTERED, 1),
        ("", ControlRefusal.OTHER, 1),
    ]
    (overview,) = replies(head.tell(OverviewRequest()), OverviewReply)
    found = [one.record for one in overview.culprits if isinstance(one.record, AccountRefused)]
    assert [(one.account, one.reason, one.messages) for one in found] == [
        ("", ControlRefusal.OTHER, 1),
        ("rival", ControlRefusal.DEAD_LETTERED, 1),
        ("rival", ControlRefusal.NOT_YOURS, 2),
    ]
    assert [one.client for one in overview.culprits] == ["", "rival", "rival"]
    (reply,) = replies(head.tell(ExplainRequest(about="rival")), ExplainReply)
    assert reply.what is Explained.ACCOUNT
    head.now += refused.REPEAT_S
    (repeated,) = refusals(head.give(ControlRefused("rival", "not-yours", "again")))
    assert repeated.messages == 3
    head.now += refused.CULPRIT_S + 1
    (overview,) = replies(head.tell(OverviewRequest()), OverviewReply)
    assert not overview.culprits


def test_the_memory_of_refused_accounts_is_bounded() -> None:
    head = Head()
    for number in range(refused.REFUSED_MAX + 20):
        head.give(ControlRefused(f"rival{number}" * 60, "not-yours", "x" * 10_000))
    (overview,) = replies(head.tell(OverviewRequest()), OverviewReply)
    assert len(overview.culprits) == refused.REFUSED_MAX
    record = overview.culprits[0].record
    assert isinstance(record, AccountRefused)
    assert len(record.detail) == refused.DETAIL_MAX
