"""What an embedded cluster looks like: clusters of a head and edges, the tree between heads, and their links.

A topology is written in TOML and read once, here, into frozen objects. This module must not know about processes,
ports in use or RabbitMQ.

Invariants of a `Topology`: names are legal and unique, the links between heads form one tree over all clusters, and
every number is in range.

    [[cluster]]
    name = "alpha"
    [cluster.head]
    uplink_bytes_per_s = 1_000_000
    [[cluster.edge]]
    link_delay_s = 0.1
    client_delay_s = 0.2

    [[link]]
    between = ["alpha", "beta"]
    delay_s = 0.05

    [balancing]
    policy = "peer-wd"

    [telemetry]
    enabled = true
"""

from __future__ import annotations

import difflib
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tidegate_brokers.errors import TopologyError
from tidegate_brokers.settings.balancing import BalancingOptions
from tidegate_protocol.ids import check_name

DELAY_S_MAX: Final = 60.0
CLUSTERS_MAX: Final = 64
EDGES_MAX: Final = 256
SOURCE_BYTES_MAX: Final = 1 << 20

Shape = Literal["chain", "star"]
Kind = Literal["head", "edge"]

Name = Annotated[str, AfterValidator(check_name)]
PerSecond = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, le=DELAY_S_MAX)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class BrokerSpec(_Table):
    """One broker. Between two brokers the `link_delay_s` of both add up, and the `delay_s` of a link between heads."""

    name: Name = ""
    uplink_bytes_per_s: PerSecond | None = None
    downlink_bytes_per_s: PerSecond | None = None
    matching_per_s: PerSecond | None = None
    link_delay_s: Delay = 0.0
    client_delay_s: Delay = 0.0
    port: Annotated[int, Field(ge=1, le=65535)] | None = None

    @property
    def is_shaped(self) -> bool:
        """Whether this broker needs a link conditioner of its own."""
        bandwidths = (self.uplink_bytes_per_s, self.downlink_bytes_per_s)
        return any(value is not None for value in bandwidths) or self.link_delay_s > 0 or self.client_delay_s > 0


class ClusterSpec(_Table):
    """One head and its edges."""

    name: Name
    head: BrokerSpec = BrokerSpec()
    edge: Annotated[tuple[BrokerSpec, ...], Field(max_length=EDGES_MAX)] = ()

    @property
    def brokers(self) -> Iterator[tuple[Kind, BrokerSpec]]:
        """The head first, then the edges in the order they were written."""
        yield "head", self.head
        for edge in self.edge:
            yield "edge", edge


class LinkSpec(_Table):
    """A link between the heads of two clusters, in both directions."""

    between: tuple[Name, Name]
    delay_s: Delay = 0.0


class TelemetrySpec(_Table):
    """Telemetry of all clusters: the options of a head that start with `telemetry`, without that word."""

    enabled: bool = True
    period_s: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    detail_period_s: Annotated[float, Field(ge=0.2, le=3600)] | None = None
    age_s: Annotated[int, Field(ge=60)] | None = None
    size_bytes: Annotated[int, Field(ge=1_000_000)] | None = None
    segment_bytes: Annotated[int, Field(ge=100_000)] | None = None

    @model_validator(mode="after")
    def _segments_fit(self) -> TelemetrySpec:
        if self.segment_bytes is not None and self.size_bytes is not None and self.segment_bytes > self.size_bytes:
            raise ValueError("segment_bytes is larger than size_bytes")
        return self

    def options(self, kind: Kind) -> dict[str, object]:
        """As a process of this kind wants them: what is kept is the head's business."""
        given = self.model_dump(exclude_none=True, exclude={"enabled"})
        if kind == "edge":
            given = {key: value for key, value in given.items() if key.endswith("period_s")}
        return {"telemetry": self.enabled} | {f"telemetry_{key}": value for key, value in given.items()}


class Topology(_Table):
    """Clusters and the tree between their heads."""

    cluster: Annotated[tuple[ClusterSpec, ...], Field(min_length=1, max_length=CLUSTERS_MAX)]
    link: tuple[LinkSpec, ...] = ()
    balancing: BalancingOptions = BalancingOptions.model_validate({})
    """The same for all brokers."""
    telemetry: TelemetrySpec = TelemetrySpec()

    @classmethod
    def load(cls, path: Path | str) -> Topology:
        """Read a TOML file; raise `TopologyError` naming the file, the place and the remedy."""
        source = str(path)
        try:
            with open(path, "rb") as stream:
                content = stream.read(SOURCE_BYTES_MAX + 1)
        except OSError as error:
            problem = f"the file can't be read ({error.strerror})"
            raise TopologyError(source, "", problem, "name a file that can be read") from None
        if len(content) > SOURCE_BYTES_MAX:
            raise TopologyError(source, "", f"the file has over {SOURCE_BYTES_MAX} bytes", "name the right file")
        try:
            return cls.parse(content.decode(), source)
        except UnicodeDecodeError:
            raise TopologyError(source, "", "the file is not UTF-8 text", "name the right file") from None

    @classmethod
    def parse(cls, text: str, source: str = "text") -> Topology:
        """Read TOML text."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TopologyError(source, "", f"is not TOML: {error}", "correct the syntax there") from None
        try:
            return cls.model_validate(tables)._named()._checked(source)
        except ValidationError as error:
            found = error.errors(include_url=False)
            # A misspelt key is often also a missing one; the misspelling says more.
            misspelt = [details for details in found if details["type"] == "extra_forbidden"]
            raise _explain(source, (misspelt or found)[0], tables) from None

    @classmethod
    def simple(cls, clusters: int = 1, edges: int = 4, shape: Shape = "chain") -> Topology:
        """`clusters` clusters of `edges` edges each, named alpha, beta, …, in a chain or around the first."""
        source = f"{clusters} clusters of {edges} edges"
        if not 1 <= clusters <= CLUSTERS_MAX:
            raise TopologyError(source, "", "the number of clusters is out of range", f"use 1 to {CLUSTERS_MAX}")
        if not 0 <= edges <= EDGES_MAX:
            raise TopologyError(source, "", "the number of edges is out of range", f"use 0 to {EDGES_MAX}")
        names = [_cluster_name(index) for index in range(clusters)]
        others = names[1:]
        near = names[:-1] if shape == "chain" else [names[0]] * len(others)
        return (
            cls(
                cluster=tuple(ClusterSpec(name=name, edge=(BrokerSpec(),) * edges) for name in names),
                link=tuple(LinkSpec(between=pair) for pair in zip(near, others, strict=True)),
            )
            ._named()
            ._checked(source)
        )

    def neighbours(self, cluster: str) -> list[tuple[str, float]]:
        """The clusters linked to `cluster`, each with the delay of the link."""
        found = []
        for link in self.link:
            if cluster in link.between:
                one, other = link.between
                found.append((other if one == cluster else one, link.delay_s))
        return found

    def _named(self) -> Topology:
        """Give every broker without a name its default name."""
        clusters = []
        for cluster in self.cluster:
            head = cluster.head.model_copy(update={"name": cluster.head.name or f"{cluster.name}-head"})
            edges = tuple(
                edge.model_copy(update={"name": edge.name or f"{cluster.name}-edge-{index}"})
                for index, edge in enumerate(cluster.edge)
            )
            clusters.append(cluster.model_copy(update={"head": head, "edge": edges}))
        return self.model_copy(update={"cluster": tuple(clusters)})

    def _checked(self, source: str) -> Topology:
        """Check what no single table can: names against each other, and the tree."""
        self._check_names(source)
        self._check_ports(source)
        self._check_tree(source)
        return self

    def _check_names(self, source: str) -> None:
        for cluster in self.cluster:
            for kind, broker in cluster.brokers:
                place = f"{kind} {broker.name} of cluster {cluster.name}"
                try:
                    check_name(broker.name, kind)
                except ValueError as error:  # a default name made from a very long cluster name
                    raise TopologyError(source, place, str(error), "shorten the cluster's name or name it") from None
        clusters = [cluster.name for cluster in self.cluster]
        brokers = [broker.name for cluster in self.cluster for _, broker in cluster.brokers]
        for what, names in (("cluster", clusters), ("broker", brokers)):
            for name, count in Counter(names).items():
                if count > 1:
                    problem = f"{count} {what}s have the name {name!r}"
                    raise TopologyError(source, f"{what} {name}", problem, f"give every {what} a name of its own")

    def _check_ports(self, source: str) -> None:
        holders: dict[int, str] = {}
        for cluster in self.cluster:
            for _, broker in cluster.brokers:
                if broker.port is None:
                    continue
                other = holders.setdefault(broker.port, broker.name)
                if other != broker.name:
                    problem = f"port {broker.port} is also the port of {other}"
                    raise TopologyError(source, f"broker {broker.name}", problem, "give every broker its own port")

    def _check_tree(self, source: str) -> None:
        """The links must join all clusters without a cycle."""
        known = [cluster.name for cluster in self.cluster]
        reached: dict[str, list[str]] = {name: [] for name in known}
        for index, link in enumerate(self.link):
            place = f"link[{index}]"
            for name in link.between:
                if name not in reached:
                    raise TopologyError(
                        source, place, f"there is no cluster {name!r}", _suggest(name, known, "clusters")
                    )
            one, other = link.between
            path = _path(reached, one, other)
            if path is not None:
                cycle = " – ".join([*path, one])
                problem = f"the heads of {cycle} form a cycle" if one != other else f"{one} is linked to itself"
                raise TopologyError(source, place, problem, "remove one of these links: heads form a tree")
            reached[one].append(other)
            reached[other].append(one)
        apart = [name for name in known if _path(reached, known[0], name) is None]
        if apart:
            problem = f"no link leads from {known[0]} to {', '.join(apart)}"
            raise TopologyError(source, "link", problem, "add [[link]] tables until all clusters are joined")


def _path(reached: dict[str, list[str]], start: str, end: str) -> list[str] | None:
    """The clusters on the way from `start` to `end`, or None if there is no way."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        if way[-1] == end:
            return way
        for following in reached[way[-1]]:
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return None


_GREEK: Final = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def _cluster_name(index: int) -> str:
    return _GREEK[index] if index < len(_GREEK) else f"cluster-{index}"


_KEYS: Final = {
    (): tuple(Topology.model_fields),
    ("cluster",): tuple(ClusterSpec.model_fields),
    ("cluster", "head"): tuple(BrokerSpec.model_fields),
    ("cluster", "edge"): tuple(BrokerSpec.model_fields),
    ("link",): tuple(LinkSpec.model_fields),
    ("balancing",): tuple(BalancingOptions.model_fields),
    ("telemetry",): tuple(TelemetrySpec.model_fields),
}


def _explain(source: str, error: ErrorDetails, tables: dict[str, object]) -> TopologyError:
    """Turn a finding of pydantic's into words about the file."""
    location = error["loc"]
    key = str(location[-1])
    place = _place(location, tables)
    if error["type"] == "extra_forbidden":
        known = _KEYS[tuple(str(part) for part in location[:-1] if isinstance(part, str))]
        return TopologyError(source, place, f"{key!r} is not a known key", _suggest(key, known, "keys"))
    if error["type"] == "missing":
        return TopologyError(source, place, f"{key!r} is missing", "add it")
    if error["type"] == "tuple_type" and isinstance(error["input"], dict):
        header = ".".join(str(part) for part in location if isinstance(part, str))
        return TopologyError(source, place, f"{key!r} is a single table", f"write [[{header}]] instead of [{header}]")
    problem = error["msg"].removeprefix("Value error, ")
    problem = problem[:1].lower() + problem[1:]
    return TopologyError(source, place, f"{problem} (found {error['input']!r:.80})", "correct the value")


def _place(location: tuple[int | str, ...], tables: dict[str, object]) -> str:
    """`cluster[1] (beta).edge[0].port`: the index counts from 0, the name is added where there is one."""
    words = ""
    here: object = tables
    for part in location:
        if isinstance(part, int):
            words += f"[{part}]"
            here = here[part] if isinstance(here, list | tuple) and part < len(here) else None
            if isinstance(here, dict) and isinstance(here.get("name"), str):
                words += f" ({here['name']})"
        else:
            words += ("." if words else "") + part
            here = here.get(part) if isinstance(here, dict) else None
    return words


def _suggest(word: str, known: list[str] | tuple[str, ...], what: str) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known {what} are {', '.join(known)}"
