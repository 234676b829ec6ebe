"""Whether publishers may name their accounts: as soon as every link of the tree passes accounts on.

A link whose account may not pass on the accounts of others would stop at the first message that names one. So each
link is tried out by whoever knows its account (an edge its own, a head those to its neighbours), edges tell their head,
and heads tell each other what holds behind them. Where all pass, this head lets publishers know, through its RabbitMQ.

Invariants:

- while something is not known yet, what held before holds on, also across a restart of this head: a publisher that
  starts meanwhile does as all others;
- a link that is known not to pass accounts on gets its own account written into its messages, whatever is allowed:
  publishers that named their accounts before go on naming them, and others name what they like;
- nothing is allowed while accounts are not checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_protocol.decisions import AccountsAllowed, AccountsOutcome

from ..kit.dispatch import Dispatch
from ..machine import AllowAccounts, EnsureLink, LinkChecked, LinkKind

if TYPE_CHECKING:
    from .context import HeadContext


class Accounts:
    """What one head knows of links, its own and those behind its neighbours."""

    def __init__(self, context: HeadContext) -> None:
        self.allowed = False
        """Whether publishers may name their accounts, and ids without one are nobody's."""
        self._context = context
        self._urls = {neighbour.name: neighbour.link_url for neighbour in context.config.neighbours}
        self._links: dict[str, bool | None] = {n.name: n.passes_accounts for n in context.config.neighbours}
        """By neighbour: whether our link to it passes accounts on; None: not known yet."""
        self._behind: dict[str, bool | None] = dict.fromkeys(self._links)
        """By neighbour: whether all links of it, and behind it, do."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(LinkChecked, self._checked)
        dispatch.ticks.append(self.judge)

    def start(self, allowed: bool) -> None:
        """`allowed`: what a predecessor left."""
        self.allowed = allowed
        for name in sorted(self._urls):
            self._ensure(name)
        self.judge()

    def heard(self, neighbour: str, passes: bool | None) -> None:
        """A neighbour says whether all links behind it pass accounts on; None if it does not know yet."""
        if passes is not None and passes is not self._behind[neighbour]:
            self._behind[neighbour] = passes
            self.judge()

    def passing(self, without: str | None = None) -> bool | None:
        """Whether all links pass accounts on, but for those behind the neighbour `without`; None: not known yet."""
        if not self._context.config.checked_accounts:
            return False
        found = [
            *(edge.passes_accounts for edge in self._context.registry.edges.values()),
            *self._links.values(),
            *(passes for name, passes in self._behind.items() if name != without),
        ]
        if False in found:
            return False
        return None if None in found else True

    def judge(self) -> None:
        """Allow, or do not any more, if all that is needed for that is known."""
        passing = self.passing()
        if passing is None or passing is self.allowed:
            return
        context, self.allowed = self._context, passing
        context.do(AllowAccounts(passing))
        outcome = AccountsOutcome.ALLOWED if passing else AccountsOutcome.WITHHELD
        context.decide(AccountsAllowed(context.config.head, outcome, self._stopping()))

    def _stopping(self) -> tuple[str, ...]:
        """Where links lead to that do not pass accounts on."""
        edges = [name for name, edge in self._context.registry.edges.items() if edge.passes_accounts is False]
        heads = [name for name in self._links if False in (self._links[name], self._behind[name])]
        return tuple(sorted({*edges, *heads}))

    def _checked(self, event: LinkChecked) -> None:
        if event.target in self._links and self._links[event.target] is not event.passes_accounts:
            self._links[event.target] = event.passes_accounts
            self._ensure(event.target)
            self.judge()

    def _ensure(self, neighbour: str) -> None:
        keeps = self._links[neighbour] if self._context.config.checked_accounts else None
        self._context.do(EnsureLink(neighbour, LinkKind.HEAD, self._urls[neighbour], keeps))

    def validate(self) -> None:
        """Raise AssertionError if what is allowed is known to be wrong."""
        assert self.passing() in (None, self.allowed)
