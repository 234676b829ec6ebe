"""Which brokers, clients, operators and analysts there are: TOML files, put together and checked as a whole.

    [[head]]
    name = "coast-head"
    cluster = "coast"
    host = "rabbit-1"               # of its RabbitMQ, as other brokers reach it
    process_host = "machine-1"      # of its process, as Prometheus reaches it; its name if this is left out

    [[link]]                        # heads form a tree
    between = ["coast-head", "inland-head"]

    [[edge]]
    name = "harbour"
    head = "coast-head"
    host = "rabbit-2"

    [[client]]
    name = "siren"                  # may call itself siren, siren-1, siren-north, …
    publish = false
    subscribe = true
    tenant = "coast"                # whose it is; left out: nobody's
    quota = { subscriptions = 50 }  # what it may use; the rest as in default_quota

    [default_quota]                 # what every client may use; the rest by default
    messages_per_s = 1_000

    [[operator]]
    name = "operator"

    [[analyst]]
    name = "analyst"

    [[secret]]
    name = "grafana"                # a password for something that is not RabbitMQ

Knows no rights and no passwords.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, permutations
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from ..errors import TopologyError
from ..settings.options import Name, Options
from ..settings.quotas import QuotaEntry, QuotaOptions
from .names import owns
from .roles import (
    WARDEN,
    Account,
    analyst_at_head,
    client_at_head,
    edge_account,
    edge_at_head,
    head_account,
    link_at_edge,
    link_at_head,
    neighbour_at_head,
    operator_at_head,
    subscriber_at_edge,
    warden_at_head,
)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        raise TopologyError(str(file), "", problem, "name a file that can be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TopologyError(str(file), "", f"is not TOML: {error}", "correct the file") from None


class _Place(Options):
    name: Name
    host: str
    """Of its RabbitMQ, as other brokers and their RabbitMQs reach it."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """None: RabbitMQ's own, 5672, or 5671 with TLS."""
    vhost: str = "/"
    process_host: str | None = None
    """Where Prometheus reaches its process; None: at its name."""


class HeadPlace(_Place):
    """A head and its RabbitMQ."""

    cluster: Name


class Link(Options):
    """Two neighbouring heads."""

    between: tuple[Name, Name]


class EdgePlace(_Place):
    """An edge and its RabbitMQ."""

    head: Name


class Client(Options):
    """An account for an application."""

    name: Name
    publish: bool = False
    subscribe: bool = False
    tenant: Name | None = None
    quota: QuotaOptions | None = None
    """What it may use; what is left out is as in `default_quota`."""


class Person(Options):
    """An account for an operator or an analyst."""

    name: Name


class Layout(Options):
    """Everybody who needs an account."""

    head: tuple[HeadPlace, ...] = Field(min_length=1)
    edge: tuple[EdgePlace, ...] = ()
    link: tuple[Link, ...] = ()
    client: tuple[Client, ...] = ()
    operator: tuple[Person, ...] = ()
    analyst: tuple[Person, ...] = ()
    secret: tuple[Person, ...] = ()
    default_quota: Annotated[tuple[QuotaOptions, ...], Field(max_length=1)] = ()
    """What every client may use, unless its own quota says otherwise."""

    @classmethod
    def load(cls, *files: Path) -> Layout:
        """Read files; raise `TopologyError` that says where they are wrong."""
        tables: dict[str, list[object]] = {}
        for file in files:
            for name, found in _read(file).items():
                tables.setdefault(name, []).extend(found if isinstance(found, list) else [found])
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            problem = first["msg"].removeprefix("Value error, ")
            raise TopologyError(", ".join(map(str, files)), place, problem, "correct the file") from None

    @model_validator(mode="after")
    def _consistent(self) -> Layout:
        heads = {head.name: head for head in self.head}
        names = [*(place.name for place in self.places), *(secret.name for secret in self.secret), *self.people]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        for edge in self.edge:
            if edge.head not in heads:
                raise ValueError(f"the edge {edge.name} belongs to a head {edge.head} that is not there")
        for link in self.link:
            if not heads.keys() >= set(link.between) or len(set(link.between)) < len(link.between):
                raise ValueError(f"there is no link between {' and '.join(link.between)}: name two heads")
        if WARDEN in self.people:
            raise ValueError(f"{WARDEN} is the name of the account that keeps others out; choose another")
        for one, other in permutations(self.people, 2):
            if owns(one, other):
                raise ValueError(f"the account {one} could use the name {other}, which is another account's")
        return self

    @property
    def people(self) -> tuple[str, ...]:
        """All accounts that are not brokers'."""
        clients = tuple(client.name for client in self.client)
        return clients + tuple(person.name for person in (*self.operator, *self.analyst))

    def quota_of(self, client: Client) -> QuotaEntry:
        """What a client may use."""
        values: dict[str, Any] = {"account": client.name, "tenant": client.tenant}
        for given in (*self.default_quota, *((client.quota,) if client.quota is not None else ())):
            values |= given.model_dump(include=given.model_fields_set)
        return QuotaEntry.model_validate(values)

    @property
    def places(self) -> tuple[HeadPlace | EdgePlace, ...]:
        """All brokers."""
        return (*self.head, *self.edge)

    def head_of(self, edge: EdgePlace) -> HeadPlace:
        """The head that an edge belongs to."""
        return next(head for head in self.head if head.name == edge.head)

    def neighbours(self, head: HeadPlace) -> tuple[HeadPlace, ...]:
        """The heads that a head is linked with."""
        linked = {name for link in self.link if head.name in link.between for name in link.between} - {head.name}
        return tuple(other for other in self.head if other.name in linked)

    def accounts(self, place: HeadPlace | EdgePlace) -> tuple[Account, ...]:
        """Everybody who has to do with this broker's RabbitMQ.

        Rights belong to a virtual host, but tags to a whole RabbitMQ: where brokers share one, an account has the tags
        of all its roles there, whichever definitions are read last.
        """
        shared = [other for other in self.places if (other.host, other.port) == (place.host, place.port)]
        tags: dict[str, set[str]] = {}
        for account in chain.from_iterable(map(self._roles, shared)):
            tags.setdefault(account.user, set()).update(account.tags)
        return tuple(replace(account, tags=tuple(sorted(tags[account.user]))) for account in self._roles(place))

    def _roles(self, place: HeadPlace | EdgePlace) -> Iterator[Account]:
        return self._at_head(place) if isinstance(place, HeadPlace) else self._at_edge(place)

    def _at_head(self, head: HeadPlace) -> Iterator[Account]:
        yield head_account(head.name)
        for edge in self.edge:
            if edge.head == head.name:
                yield edge_at_head(edge.name, head.cluster)
        for neighbour in self.neighbours(head):
            yield neighbour_at_head(neighbour.name, head.name, head.cluster)
            yield link_at_head(neighbour.name)
        yield warden_at_head()
        for client in self.client:
            account = client_at_head(client.name, publishes=client.publish)
            yield replace(account, limits=self.quota_of(client).user_limits)
        for operator in self.operator:
            yield operator_at_head(operator.name)
        for analyst in self.analyst:
            yield analyst_at_head(analyst.name)

    def _at_edge(self, edge: EdgePlace) -> Iterator[Account]:
        yield edge_account(edge.name)
        yield link_at_edge(edge.head)
        for client in self.client:
            if client.subscribe:
                yield replace(subscriber_at_edge(client.name), limits=self.quota_of(client).user_limits)
