"""Subscriptions that come from another cluster: the side of the head that takes them over.

A neighbour without room asks which of our edges have some, and then to make a place for one subscription after the
other. What always holds:

- an edge is offered only if it said itself, just now, that it is LOW and not busy, and this head is LOW as well; the
  promises of running migrations are part of its load;
- a place is confirmed only when it is made and its routes, and those of its markers, are live at every head: one that
  has not confirmed would leave a gap in what the client gets;
- every request may be repeated and gets the same answer; one that comes after the end of its migration is refused;
- the old head gets its acknowledgement when a place that nobody came to is gone, not before: should we be restarted
  meanwhile, and have forgotten, it tells us again;
- a client that leaves before its old head has heard that it moved is kept waiting while we tell it: otherwise
  its old place would wait for it for ever;
- if nobody tells us how it ended, the place is kept, because its client may be using it; if not it expires by itself.
  It is removed only if the client, asked through its old head, says that it is elsewhere;
- to its cluster, an edge that takes subscriptions from another one is in a session, from the first to the last of them.
  It takes them from one head at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate_protocol.balancing import (
    CANDIDATES_MAX,
    AcceptEnd,
    AcceptReply,
    AcceptRequest,
    BrokerLoad,
    Candidate,
    LoadReply,
    LoadRequest,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PlaceReply,
    PlaceRequest,
    RemoteLoads,
    RemoteLoadsRequest,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.messages import ControlMessage, LoadState, RefusalReason, Subscription
from tidegate_protocol.names import marker_pattern

from .config import HOP_WAIT_SHARE, REPLIES_JOINED_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .fitting import fitting_candidates
from .head_load import HeadLoads
from .machine import Decision, ReplyAddress, Send
from .paths import Paths
from .preparations import Preparations, Prepared
from .registry import Key, key_of
from .removals import Removals

ASKED_MAX: Final = 64
"""Sessions of other clusters that ask for our edges at the same time."""

KEPT_TIMEOUTS: Final = 3
"""How many migration time-outs to wait for the end of a migration; the client and its old head need two of them."""

DOUBTS_MAX: Final = 1_000
"""Places kept in doubt about which is asked."""
DOUBT_ATTEMPTS_MAX: Final = 6

LEAVING_ATTEMPTS_MAX: Final = 6
"""How often a client that leaves is kept waiting until its old head knows that it has moved."""

ENDED_MAX: Final = 5_000
"""Ended migrations that are remembered, in case a request about one comes late."""


class Vacating(Protocol):
    """Who moves clients on from here."""

    def vacate(self, place: tuple[str, Key], why: str) -> bool: ...


class BusyEdges(Protocol):
    """Who of our edges is in a session, and for how long they are in one that another head leads."""

    def busy(self, edge: str) -> str | None: ...

    def reserve(self, edge: str, session: str) -> None: ...

    def release(self, edge: str, session: str) -> None: ...


@dataclass(slots=True)
class _Asked:
    message: RemoteLoadsRequest
    replies: list[ReplyAddress]
    waiting: dict[str, str] = field(default_factory=dict)
    loads: dict[str, BrokerLoad] = field(default_factory=dict)


@dataclass(slots=True)
class _Acceptance:
    request: AcceptRequest
    replies: list[ReplyAddress]
    started_s: float
    reply: AcceptReply | None = None


@dataclass(slots=True)
class _Hosting:
    """An edge that takes subscriptions from another cluster; the session is named after the first of them."""

    session: str
    head: str
    started_s: float
    left: set[str] = field(default_factory=set)
    moved: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A migration that is over, with the places of a client that has not come, or may not have."""

    places: tuple[tuple[str, Key], ...] = ()
    kept: bool = False
    """Whether they are kept, because nobody knows how it ended; otherwise they are being removed."""


@dataclass(slots=True)
class _Doubt:
    """A place that was kept without knowing whether its client has come."""

    head: str
    """The one it was to come from."""
    subscriber: str
    pattern: str
    left: tuple[str, int] | None = None
    """If it is served from there, it has not come. None where being anywhere else says as much."""
    attempts: int = 0
    request_id: str | None = None


class Acceptances:
    """What other clusters ask of this one."""

    def __init__(
        self,
        context: HeadContext,
        preparations: Preparations,
        removals: Removals,
        loads: HeadLoads,
        paths: Paths,
        sessions: BusyEdges,
        migrations: Vacating,
    ) -> None:
        self._context = context
        self._preparations = preparations
        self._removals = removals
        self._loads = loads
        self._paths = paths
        self._sessions = sessions
        self._migrations = migrations
        self._asked: dict[str, _Asked] = {}
        self._accepting: dict[str, _Acceptance] = {}
        self._hosting: dict[str, _Hosting] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._ended: dict[str, _Ended] = {}
        self._leaving: dict[str, int] = {}
        """Migrations whose clients have left already, and how often their old head was told that they had moved."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(RemoteLoadsRequest, self.loads_asked)
        dispatch.on_message(AcceptRequest, self.accept)
        dispatch.on_message(AcceptEnd, self.end)
        dispatch.on_request("remote-load", self._load_answered, self._load_undeliverable)
        dispatch.on_timer("remote-load", self._loads_timed_out)
        dispatch.on_timer("acceptance", self._kept)
        dispatch.on_request("doubt", self._place_told, self._place_unknown)
        dispatch.on_timer("doubt", self._ask_place_again)
        dispatch.checks.append(self.validate)

    # Who has room

    def loads_asked(self, message: RemoteLoadsRequest, reply_to: ReplyAddress | None) -> None:
        context = self._context
        if reply_to is None:
            return
        asked = self._asked.get(message.session)
        if asked is not None:
            asked.replies = [*asked.replies, reply_to][-REPLIES_JOINED_MAX:]
            return
        if message.head not in context.routes.offers:
            text = f"{message.head} is not a neighbour of {context.config.head}"
            context.refuse(reply_to, RefusalReason.UNKNOWN, text, "head")
        elif context.paused:
            context.refuse(reply_to, RefusalReason.NOT_READY, "an operator has paused balancing here")
        elif not context.config.publisher_url:
            text = "publisher_url is not configured: clients could not be told where to find this head"
            context.refuse(reply_to, RefusalReason.NOT_READY, text)
        elif len(self._asked) >= ASKED_MAX:
            context.refuse(reply_to, RefusalReason.LIMIT, f"ASKED_MAX = {ASKED_MAX} sessions ask already")
        else:
            self._ask_edges(message, reply_to)

    def _ask_edges(self, message: RemoteLoadsRequest, reply_to: ReplyAddress) -> None:
        context, session = self._context, message.session
        asked = self._asked[session] = _Asked(message, [reply_to])
        head_has_room = self._loads.state in (LoadState.LOW, LoadState.NOT_AVAILABLE) and not context.stopping
        names = [name for name in self._loads.able() if self._sessions.busy(name) is None] if head_has_room else []
        for name in names[:CANDIDATES_MAX]:
            request = LoadRequest(session=session)
            asked.waiting[name] = context.request(name, request, "remote-load", f"{session} {name}")
        wait_s = context.config.balancing.load_reply_timeout_s * HOP_WAIT_SHARE
        context.set_timer(f"remote-load {session}", wait_s)
        self._reply_if_done(asked)

    def _load_answered(self, subject: str, message: ControlMessage) -> None:
        session, _, edge = subject.partition(" ")
        asked = self._asked.get(session)
        if asked is None or asked.waiting.pop(edge, None) is None:
            return
        if isinstance(message, LoadReply) and message.load.broker == edge:
            load = message.load
            if load.state is LoadState.LOW and not load.busy:
                asked.loads[edge] = load
        self._reply_if_done(asked)

    def _load_undeliverable(self, subject: str) -> None:
        session, _, edge = subject.partition(" ")
        asked = self._asked.get(session)
        if asked is not None and asked.waiting.pop(edge, None) is not None:
            self._reply_if_done(asked)

    def _loads_timed_out(self, session: str) -> None:
        asked = self._asked.get(session)
        if asked is not None:
            for request_id in asked.waiting.values():
                self._context.drop_request(request_id)
            asked.waiting = {}
            self._reply_if_done(asked)

    def _reply_if_done(self, asked: _Asked) -> None:
        if asked.waiting:
            return
        context, message = self._context, asked.message
        del self._asked[message.session]
        context.cancel_timer(f"remote-load {message.session}")
        candidates = fitting_candidates([self._candidate(asked, name) for name in sorted(asked.loads)])
        for reply_to in asked.replies:
            context.reply(reply_to, RemoteLoads(session=message.session, candidates=candidates))

    def _candidate(self, asked: _Asked, name: str) -> Candidate:
        context, message = self._context, asked.message
        record = context.registry.edges.get(name)
        shared = () if record is None else tuple(p for p in message.patterns if p in record.patterns)
        return Candidate(
            cluster=context.config.cluster,
            head=context.config.head,
            load=context.promises.added_to(asked.loads[name], context.now),
            patterns=shared,
            extra_path_us=self._paths.hop_us(message.head),
        )

    # Taking over

    def accept(self, message: AcceptRequest, reply_to: ReplyAddress | None) -> None:
        context = self._context
        known = self._accepting.get(message.migration)
        if known is not None:
            if known.reply is not None:
                context.reply(reply_to, known.reply)
            elif reply_to is not None:
                known.replies = [*known.replies, reply_to][-REPLIES_JOINED_MAX:]
            return
        why_not = self._refusal(message)
        if why_not is not None:
            context.refuse(reply_to, *why_not)
            return
        acceptance = _Acceptance(message, [reply_to] if reply_to else [], context.now)
        self._accepting[message.migration] = acceptance
        self._host(message)
        context.promises.promise(message.migration, message.edge, message.load)
        # Needed before the place is, so that waiting for its routes is waiting for those of the markers too.
        context.routes.need(message.edge, message.marker)
        number = None if message.source is None else message.subscription.number
        origin = {"origin": message.head, "origin_edge": message.source, "origin_number": number}
        terms = message.subscription.model_copy(update=origin)
        self._preparations.start(
            message.migration, message.edge, terms, message.marker, self._prepared, everywhere=True
        )

    def _refusal(self, message: AcceptRequest) -> tuple[RefusalReason, str] | None:
        context, config, edge = self._context, self._context.config, message.edge
        subscription = message.subscription
        if message.head not in context.routes.offers:
            return RefusalReason.UNKNOWN, f"{message.head} is not a neighbour of {config.head}"
        if message.marker != marker_pattern(message.migration):
            return RefusalReason.INVALID, f"{message.marker} is not the pattern of this migration's markers"
        if message.migration in self._ended:
            return RefusalReason.CONFLICT, "this migration has ended"
        if context.stopping or not config.publisher_url:
            return RefusalReason.NOT_READY, f"{config.head} takes no subscriptions from others"
        if edge not in context.registry.edges:
            return RefusalReason.UNKNOWN, f"{edge} is not an edge of {config.head}"
        hosting = self._hosting.get(edge)
        busy = self._sessions.busy(edge)
        if busy is not None and (hosting is None or hosting.head != message.head):
            return RefusalReason.CONFLICT, f"{edge} is {busy}"
        if len(self._accepting) >= config.balancing.migrations_max:
            return RefusalReason.LIMIT, f"migrations_max = {config.balancing.migrations_max} are on their way here"
        limit = config.subscriptions_per_subscriber_max
        if context.registry.count_of(subscription.subscriber) >= limit:
            text = f"{subscription.subscriber} has subscriptions_per_subscriber_max = {limit} subscriptions here"
            return RefusalReason.LIMIT, text
        if len(context.registry) >= config.subscriptions_max:
            return RefusalReason.LIMIT, f"subscriptions_max = {config.subscriptions_max}"
        found = context.registry.find(subscription.subscriber, subscription.pattern)
        if any((name, (other.subscriber, other.number)) in context.granted for name, other in found):
            return RefusalReason.CONFLICT, f"{subscription.subscriber} has this subscription in this cluster already"
        return None

    def _host(self, message: AcceptRequest) -> None:
        """One more is on its way to this edge."""
        hosting = self._hosting.get(message.edge)
        if hosting is None:
            hosting = self._hosting[message.edge] = _Hosting(message.migration, message.head, self._context.now)
            self._sessions.reserve(message.edge, hosting.session)
            self._notify(message.edge, hosting, SessionPhase.STARTED)
        hosting.left.add(message.migration)

    def _hosted(self, message: AcceptRequest, moved: bool) -> None:
        """One less."""
        hosting = self._hosting[message.edge]
        hosting.left.discard(message.migration)
        hosting.moved += moved
        hosting.failed += not moved
        if not hosting.left:
            del self._hosting[message.edge]
            self._sessions.release(message.edge, hosting.session)
            self._notify(message.edge, hosting, SessionPhase.ENDED)

    def _notify(self, edge: str, hosting: _Hosting, phase: SessionPhase) -> None:
        notice = SessionNotice(
            session=hosting.session,
            phase=phase,
            source=hosting.head,
            moved=hosting.moved,
            failed=hosting.failed,
            duration_us=round((self._context.now - hosting.started_s) * 1e6),
        )
        self._context.do(Send(edge, notice))

    def _prepared(self, migration: str, how: Prepared) -> None:
        context = self._context
        acceptance = self._accepting.get(migration)
        if acceptance is None:
            return
        problem = how.problem
        if not problem and how.awaiting:
            problem = f"no confirmed routes at {', '.join(how.awaiting)}"
        replies, acceptance.replies = acceptance.replies, []
        if problem:
            for reply_to in replies:
                context.refuse(reply_to, RefusalReason.NOT_READY, problem[:1_000])
            self._close(acceptance, moved=False, why=problem)
            return
        acceptance.reply = AcceptReply(
            migration=migration,
            edge=how.edge,
            number=how.subscription.number,
            url=context.registry.edges[how.edge].client_url,
            queue=how.queue,
            head_url=context.config.publisher_url,
        )
        for reply_to in replies:
            context.reply(reply_to, acceptance.reply)
        wait_s = KEPT_TIMEOUTS * context.config.balancing.migration_timeout_s
        context.set_timer(f"acceptance {migration}", wait_s)

    def end(self, message: AcceptEnd, reply_to: ReplyAddress | None) -> None:
        """The old head says how it ended."""
        acceptance = self._accepting.get(message.migration)
        unread = self._unread(message.edge)
        if acceptance is None and message.migration not in self._ended and unread:
            # We have just started and may have made a place for it before.
            self._context.refuse(reply_to, RefusalReason.NOT_READY, f"the registry of {unread} is not known yet")
            return
        if acceptance is not None and acceptance.request.head == message.head:
            self._close(acceptance, message.moved, "told by the old head")
        elif acceptance is None and message.moved:
            self._remember(message.migration, _Ended())
        elif acceptance is None and not self._stayed(message):
            text = f"{message.subscriber} is just being moved on from here"
            self._context.refuse(reply_to, RefusalReason.NOT_READY, text)
            return
        places = self._ended.get(message.migration, _Ended()).places
        registry, discarded = self._context.registry, self._removals.is_discarded
        left = [place[0] for place in places if discarded(place) and registry.get(*place) is not None]
        if left:
            self._context.refuse(reply_to, RefusalReason.NOT_READY, f"the place on {left[0]} is not removed yet")
        else:
            self._context.reply(reply_to, MigrationAck(migration=message.migration))

    def _stayed(self, message: AcceptEnd) -> bool:
        """We have no part in this migration any more, and hear that its client has not come. False if that can't be
        dealt with yet.
        """
        ended = self._ended.get(message.migration)
        places = self._never_came(message) if ended is None else ended.places
        if ended is None or ended.kept:
            if not self._vacated(places):
                return False
            for place in places:
                self._removals.discard(*place)
        self._remember(message.migration, _Ended(places))
        return True

    def _vacated(self, places: tuple[tuple[str, Key], ...]) -> bool:
        """Whether nobody moves a client away from these places, where it has never been. After a restart we took such a
        place for its own, and may have begun to.
        """
        return all(self._migrations.vacate(place, "its client has never come here") for place in places)

    def _unread(self, edge: str | None) -> str:
        record = self._context.registry.edges.get(edge or "")
        return "" if record is None or record.settled else record.name

    def _never_came(self, message: AcceptEnd) -> tuple[tuple[str, Key], ...]:
        """What was made before we were started, for a client that has stayed where it was. Without a number, whatever
        nobody uses is meant.
        """
        context = self._context
        if message.edge is None or message.subscriber is None or message.pattern is None:
            return ()
        found = context.registry.find(message.subscriber, message.pattern)
        meant = [(edge, key_of(s)) for edge, s in found if edge == message.edge and message.number in (None, s.number)]
        used = (context.granted, context.reserved, context.abandoned)
        return tuple(place for place in meant if not any(place in places for places in used))

    def _kept(self, migration: str) -> None:
        """Nobody said how it ended."""
        acceptance = self._accepting.get(migration)
        if acceptance is None or acceptance.reply is None:
            return
        reply, message = acceptance.reply, acceptance.request
        self._close(acceptance, moved=True, why="nobody said how it ended; its client may be here")
        place = (reply.edge, (message.subscription.subscriber, reply.number))
        self._remember(migration, _Ended((place,), kept=True))
        if len(self._doubts) < DOUBTS_MAX:
            self._doubts[migration] = _Doubt(message.head, *_client(message.subscription))
            self._ask_place(migration)

    def guest_in_doubt(self, head: str, key: Key) -> None:
        """Both we and the head it came from have a place of this client. That may be because both of us were restarted
        before it came: then nobody knows any more that it was expected.
        """
        context = self._context
        used = (context.granted, context.reserved, context.abandoned)
        for edge in sorted(context.registry.holders(key)):
            place, known = (edge, key), context.registry.get(edge, key)
            if known is None or known.origin != head or known.origin_edge is None or known.origin_number is None:
                continue
            name = f"guest {edge} {key[0]} {key[1]}"
            if len(self._doubts) < DOUBTS_MAX and name not in self._doubts and not any(place in p for p in used):
                self._remember(name, _Ended((place,), kept=True))
                self._doubts[name] = _Doubt(head, *_client(known), (known.origin_edge, known.origin_number))
                self._ask_place(name)

    # Leaving right after coming

    def leaves_too_early(self, key: Key) -> bool:
        """Whether this subscription, which its client wants to end, is one that its old head still counts as its own.

        Then that head is told that the client has moved, a bounded number of times, and answers with `AcceptEnd`.
        """
        for migration, acceptance in self._accepting.items():
            reply, terms = acceptance.reply, acceptance.request.subscription
            if reply is not None and (terms.subscriber, reply.number) == key:
                self._leaving.setdefault(migration, 0)
                return self._tell_moved(migration, acceptance, reply)
        return False

    def _tell_moved(self, migration: str, acceptance: _Acceptance, reply: AcceptReply) -> bool:
        if self._leaving[migration] >= LEAVING_ATTEMPTS_MAX:
            return False
        self._leaving[migration] += 1
        terms = acceptance.request.subscription
        report = MigrationReport(
            migration=migration,
            subscriber=terms.subscriber,
            stage=MigrationStage.MOVED,
            pattern=terms.pattern,
            edge=reply.edge,
            number=reply.number,
            other_edge=acceptance.request.source,
            other_number=terms.number,
            reason="it has moved, and leaves now",
        )
        self._context.do(Send(acceptance.request.head, report))
        return True

    # Asking where the client is

    def _ask_place(self, migration: str) -> None:
        doubt, context = self._doubts[migration], self._context
        message = PlaceRequest(subscriber=doubt.subscriber, pattern=doubt.pattern)
        doubt.attempts += 1
        context.drop_request(doubt.request_id)
        doubt.request_id = context.request(doubt.head, message, "doubt", migration)
        context.set_timer(f"doubt {migration}", context.config.balancing.migration_timeout_s)

    def _place_told(self, migration: str, message: ControlMessage) -> None:
        """The client is somewhere else for certain, or we are no wiser than before."""
        doubt = self._doubts.get(migration)
        if doubt is None or not isinstance(message, PlaceReply):
            return
        if message.edge is None or message.migration is not None:
            return
        ended = self._ended.get(migration, _Ended())
        elsewhere = message.edge not in self._context.registry.edges
        if doubt.left is not None:
            elsewhere = doubt.left == (message.edge, message.number)
        elsewhere = elsewhere and ended.kept
        if elsewhere and not self._vacated(ended.places):
            return  # the timer asks again
        self._resolve(migration)
        if elsewhere:
            self._remember(migration, _Ended(ended.places))
            for place in ended.places:
                self._removals.discard(*place)

    def _place_unknown(self, migration: str) -> None:
        """The old head is not there at this moment; the timer asks again."""

    def _ask_place_again(self, migration: str) -> None:
        doubt = self._doubts.get(migration)
        if doubt is not None and doubt.attempts < DOUBT_ATTEMPTS_MAX:
            self._ask_place(migration)
        elif doubt is not None:
            self._resolve(migration)

    def _resolve(self, migration: str) -> None:
        doubt = self._doubts.pop(migration)
        self._context.drop_request(doubt.request_id)
        self._context.cancel_timer(f"doubt {migration}")

    def _close(self, acceptance: _Acceptance, moved: bool, why: str) -> None:
        context, message = self._context, acceptance.request
        migration, balancing = message.migration, context.config.balancing
        del self._accepting[migration]
        unused = not moved and migration in self._preparations
        self._remember(migration, _Ended((self._preparations.place(migration),) if unused else ()))
        self._leaving.pop(migration, None)
        context.cancel_timer(f"acceptance {migration}")
        if moved:
            self._preparations.taken(migration)
            context.guest_came(message.head, acceptance.started_s)
            context.promises.keep(migration, context.now + balancing.stabilizing_min_s)
            context.cooldowns.rest(_client(message.subscription), context.now + balancing.cooldown_s)
        else:
            self._preparations.given_up(migration)
            context.promises.drop(migration)
        context.routes.release(message.edge, message.marker)
        self._hosted(message, moved)
        for reply_to in acceptance.replies:
            context.refuse(reply_to, RefusalReason.CONFLICT, "this migration has ended")
        subject = f"{message.subscription.subscriber} {message.subscription.pattern} on {message.edge}"
        kind = "accepted" if moved else "not-accepted"
        context.decide(Decision(kind, subject, why[:1_000], session=migration))

    def _remember(self, migration: str, ended: _Ended) -> None:
        self._ended.pop(migration, None)
        self._ended[migration] = ended
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def validate(self) -> None:
        """Raise AssertionError if a migration is both under way and ended, or its markers have no route."""
        assert not self._accepting.keys() & self._ended.keys()
        assert len(self._ended) <= ENDED_MAX
        assert len(self._doubts) <= DOUBTS_MAX
        assert all(asked.waiting for asked in self._asked.values())
        assert self._leaving.keys() <= self._accepting.keys()
        for migration, acceptance in self._accepting.items():
            edge, marker = acceptance.request.edge, acceptance.request.marker
            assert self._context.routes.is_carried(edge, marker), f"the markers of {migration}"
            assert migration in self._preparations, f"{migration} has no place here"
            assert migration in self._hosting[edge].left, f"{edge} does not count {migration}"
        assert sum(len(hosting.left) for hosting in self._hosting.values()) == len(self._accepting)
        for edge in self._hosting:
            assert self._sessions.busy(edge) is not None, f"{edge} takes load but is not busy"


def _client(subscription: Subscription) -> tuple[str, str]:
    return subscription.subscriber, subscription.pattern
