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

    [[tenant]]
    name = "coastguard"
    publish = ["coast.#"]           # none of its accounts may more
    subscribe = ["coast.#", "weather.*"]

    [[client]]
    name = "siren"                  # may call itself siren, siren-1, siren-north, …
    tenant = "coastguard"
    publish = false
    subscribe = ["coast.alert.#"]   # true: all that its tenant may; without a tenant, any topic
    quota = { subscriptions = 50 }  # what it may use; the rest as in default_quota

    [default_quota]                 # what every client may use; the rest by default
    messages_per_s = 1_000

    [[operator]]
    name = "operator"               # with tenant = "…", it looks only, and sees no names of others

    [[analyst]]
    name = "analyst"

    [[secret]]
    name = "grafana"                # a password for something that is not RabbitMQ

Invariant: what an account may publish or subscribe, its tenant may; a layout that says otherwise is refused.

Knows no passwords, and no rights of RabbitMQ's (`roles.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, permutations
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, StrictBool, ValidationError, model_validator

from tidegate_protocol.rights import AccountRights, Deed, OperatorRights, Patterns, Rules
from tidegate_protocol.topics import ANY_WORDS, covers

from ..errors import TopologyError
from ..settings.options import Name, Options
from ..settings.quotas import QuotaEntry, QuotaOptions
from .names import owns
from .roles import (
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
    warden_account,
)

ANY_TOPIC: Final = (ANY_WORDS,)


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
    management_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Of its management API; None: RabbitMQ's own, 15672, or 15671 with TLS."""
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


Grant = Patterns | StrictBool
"""Patterns, or all (`true`), or none (`false`)."""


class Tenant(Options):
    """A bound for several accounts."""

    name: Name
    publish: Grant = False
    subscribe: Grant = False
    quota: QuotaOptions | None = None
    """What all of its accounts may use together; None: no more than each of them."""

    def grant(self, deed: Deed) -> tuple[str, ...]:
        """What its accounts may at most."""
        return _patterns(self.publish if deed is Deed.PUBLISH else self.subscribe, ANY_TOPIC)


class Client(Options):
    """An account for an application."""

    name: Name
    tenant: Name | None = None
    publish: Grant = False
    subscribe: Grant = False
    quota: QuotaOptions | None = None
    """What it may use; what is left out is as in `default_quota`."""

    def grant(self, deed: Deed, tenant: Tenant | None) -> tuple[str, ...]:
        """What it may do: its patterns, or where it is granted everything, those of its tenant."""
        everything = ANY_TOPIC if tenant is None else tenant.grant(deed)
        return _patterns(self.publish if deed is Deed.PUBLISH else self.subscribe, everything)


def _patterns(grant: bool | tuple[str, ...], everything: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(grant, bool):
        return everything if grant else ()
    return grant


class Person(Options):
    """An account for an analyst."""

    name: Name


class Operator(Person):
    """An account for an operator; one of a tenant looks at what concerns its tenant, and never acts."""

    tenant: Name | None = None
    sees_others: bool = False
    """Whether one of a tenant is told the names of other tenants' clients."""


class Layout(Options):
    """Everybody who needs an account."""

    head: tuple[HeadPlace, ...] = Field(min_length=1)
    edge: tuple[EdgePlace, ...] = ()
    link: tuple[Link, ...] = ()
    tenant: tuple[Tenant, ...] = ()
    client: tuple[Client, ...] = ()
    operator: tuple[Operator, ...] = ()
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
        for one, other in permutations(self.people, 2):
            if owns(one, other):
                raise ValueError(f"the account {one} could use the name {other}, which is another account's")
        tenants = [tenant.name for tenant in self.tenant]
        if len(set(tenants)) < len(tenants):
            raise ValueError(f"the tenant {max(tenants, key=tenants.count)} is named twice")
        for client in self.client:
            self._check_tenant(client)
        for operator in self.operator:
            if operator.tenant is not None and operator.tenant not in tenants:
                raise ValueError(
                    f"the operator {operator.name} belongs to a tenant {operator.tenant} that is not there"
                )
        return self

    def _check_tenant(self, client: Client) -> None:
        if client.tenant is None:
            return
        tenant = self.tenant_of(client)
        if tenant is None:
            raise ValueError(f"the account {client.name} belongs to a tenant {client.tenant} that is not there")
        for deed in Deed:
            bounds = tenant.grant(deed)
            for pattern in client.grant(deed, tenant):
                if not any(covers(bound, pattern) for bound in bounds):
                    raise ValueError(
                        f"the account {client.name} may {deed} {pattern}, its tenant {tenant.name} only "
                        f"{', '.join(bounds) or 'nothing'}"
                    )

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
    def tenant_quotas(self) -> tuple[QuotaEntry, ...]:
        """What the accounts of a tenant may use together, where that is said."""
        given = [(tenant.name, tenant.quota) for tenant in self.tenant if tenant.quota is not None]
        return tuple(QuotaEntry.model_validate({"tenant": name, **quota.model_dump()}) for name, quota in given)

    @property
    def places(self) -> tuple[HeadPlace | EdgePlace, ...]:
        """All brokers."""
        return (*self.head, *self.edge)

    def tenant_of(self, client: Client) -> Tenant | None:
        """The tenant that an account belongs to, if it belongs to one."""
        return next((tenant for tenant in self.tenant if tenant.name == client.tenant), None)

    @property
    def rules(self) -> Rules:
        """What each account of an application may publish and subscribe, as heads and edges read it."""
        return Rules(
            (
                AccountRights(
                    account=client.name,
                    tenant=client.tenant,
                    publish=client.grant(Deed.PUBLISH, self.tenant_of(client)),
                    subscribe=client.grant(Deed.SUBSCRIBE, self.tenant_of(client)),
                )
                for client in self.client
            ),
            (OperatorRights(account=one.name, tenant=one.tenant, sees_others=one.sees_others) for one in self.operator),
        )

    def head_of(self, edge: EdgePlace) -> HeadPlace:
        """The head that an edge belongs to."""
        return next(head for head in self.head if head.name == edge.head)

    def sharing(self, place: HeadPlace | EdgePlace) -> tuple[HeadPlace | EdgePlace, ...]:
        """All brokers on the same RabbitMQ, this one among them."""
        return tuple(other for other in self.places if (other.host, other.port) == (place.host, place.port))

    def neighbours(self, head: HeadPlace) -> tuple[HeadPlace, ...]:
        """The heads that a head is linked with."""
        linked = {name for link in self.link if head.name in link.between for name in link.between} - {head.name}
        return tuple(other for other in self.head if other.name in linked)

    def accounts(self, place: HeadPlace | EdgePlace) -> tuple[Account, ...]:
        """Everybody who has to do with this broker's RabbitMQ.

        Rights belong to a virtual host, but tags to a whole RabbitMQ: where brokers share one, an account has the tags
        of all its roles there, whichever definitions are read last.
        """
        tags: dict[str, set[str]] = {}
        for account in chain.from_iterable(map(self._roles, self.sharing(place))):
            tags.setdefault(account.user, set()).update(account.tags)
        return tuple(replace(account, tags=tuple(sorted(tags[account.user]))) for account in self._roles(place))

    def _roles(self, place: HeadPlace | EdgePlace) -> Iterator[Account]:
        return self._at_head(place) if isinstance(place, HeadPlace) else self._at_edge(place)

    def _at_head(self, head: HeadPlace) -> Iterator[Account]:
        yield head_account(head.name)
        yield warden_account(head.name)
        for edge in self.edge:
            if edge.head == head.name:
                yield edge_at_head(edge.name, head.cluster)
        for neighbour in self.neighbours(head):
            yield neighbour_at_head(neighbour.name, head.name, head.cluster)
            yield link_at_head(neighbour.name)
        for client in self.client:
            account = client_at_head(client.name, client.grant(Deed.PUBLISH, self.tenant_of(client)))
            yield replace(account, limits=self.quota_of(client).user_limits)
        for operator in self.operator:
            yield operator_at_head(operator.name)
        for analyst in self.analyst:
            yield analyst_at_head(analyst.name)

    def _at_edge(self, edge: EdgePlace) -> Iterator[Account]:
        yield edge_account(edge.name)
        yield warden_account(edge.name)
        yield link_at_edge(edge.head)
        for client in self.client:
            if client.grant(Deed.SUBSCRIBE, self.tenant_of(client)):
                yield replace(subscriber_at_edge(client.name), limits=self.quota_of(client).user_limits)
