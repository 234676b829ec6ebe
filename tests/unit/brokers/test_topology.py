"""Topologies: what a file means, the examples that are shipped, and the words about what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_brokers.errors import EX_CONFIG, TopologyError
from tidegate_embedded.topology import CLUSTERS_MAX, EDGES_MAX, SOURCE_BYTES_MAX, Topology

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
TWO = '[[cluster]]\nname = "coast"\n[[cluster]]\nname = "inland"\n'
THREE = TWO + '[[cluster]]\nname = "island"\n'


def link(one: str, other: str) -> str:
    return f'[[link]]\nbetween = ["{one}", "{other}"]\n'


def names(topology: Topology) -> list[list[str]]:
    return [[spec.name for _, spec in cluster.brokers] for cluster in topology.cluster]


def test_a_cluster_needs_no_more_than_a_name() -> None:
    topology = Topology.parse('[[cluster]]\nname = "coast"\n[[cluster.edge]]\n[[cluster.edge]]\nname = "pier"\n')
    assert names(topology) == [["coast-head", "coast-edge-0", "pier"]]
    assert [kind for kind, _ in topology.cluster[0].brokers] == ["head", "edge", "edge"]
    assert not any(spec.is_shaped for _, spec in topology.cluster[0].brokers)


def test_neighbours_are_seen_from_both_ends_of_a_link() -> None:
    topology = Topology.parse(THREE + link("coast", "inland") + "delay_s = 0.05\n" + link("island", "coast"))
    assert topology.neighbours("coast") == [("inland", 0.05), ("island", 0.0)]
    assert topology.neighbours("inland") == [("coast", 0.05)]


@pytest.mark.parametrize(
    "value",
    ["uplink_bytes_per_s = 1", "downlink_bytes_per_s = 1.5", "link_delay_s = 0.1", "client_delay_s = 0.1"],
)
def test_bandwidths_and_delays_shape_a_broker(value: str) -> None:
    topology = Topology.parse(
        f'[[cluster]]\nname = "coast"\n[[cluster.edge]]\n{value}\n[[cluster.edge]]\nport = 5672\n'
    )
    assert [spec.is_shaped for spec in topology.cluster[0].edge] == [True, False]


def test_simple_topologies() -> None:
    chain, star = (Topology.simple(clusters=4, edges=1, shape=shape) for shape in ("chain", "star"))
    assert chain.neighbours("alpha") == [("beta", 0.0)]
    assert [name for name, _ in star.neighbours("alpha")] == ["beta", "gamma", "delta"]
    assert names(chain)[1] == ["beta-head", "beta-edge-0"]
    assert len(Topology.simple(clusters=CLUSTERS_MAX, edges=0).cluster) == CLUSTERS_MAX
    for clusters, edges in ((0, 1), (CLUSTERS_MAX + 1, 1), (1, -1), (1, EDGES_MAX + 1)):
        with pytest.raises(TopologyError, match="out of range; use"):
            Topology.simple(clusters=clusters, edges=edges)


def test_the_example_chain_loads() -> None:
    topology = Topology.load(EXAMPLES / "chain.toml")
    assert [len(brokers) for brokers in names(topology)] == [3, 3, 3]
    assert [name for name, _ in topology.neighbours("valley")] == ["coast", "highland"]


def test_the_example_early_warning_has_the_network_of_the_burst_experiment() -> None:
    [cluster] = Topology.load(EXAMPLES / "early-warning.toml").cluster
    assert cluster.head.uplink_bytes_per_s == 20e6 / 8
    assert {edge.name: edge.uplink_bytes_per_s for edge in cluster.edge} == {
        name: megabits * 1e6 / 8 for name, megabits in {"b0": 6.5, "b1": 8, "b2": 5, "b3": 8}.items()
    }
    assert {(edge.link_delay_s + cluster.head.link_delay_s, edge.client_delay_s) for edge in cluster.edge} == {
        (0.1, 0.2)
    }
    assert cluster.head.client_delay_s == 0, "publishers sit beside the head"


def test_every_example_loads() -> None:
    files = sorted(EXAMPLES.glob("*.toml"))
    assert {"chain.toml", "early-warning.toml"} <= {file.name for file in files}
    for file in files:
        Topology.load(file)


EDGE = '[[cluster]]\nname = "coast"\n[[cluster.edge]]\n'


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (EDGE + "uplink_bytes = 5\n", "cluster[0] (coast).edge[0].uplink_bytes", "did you mean 'uplink_bytes_per_s'?"),
        (EDGE + "colour = 1\n", "cluster[0] (coast).edge[0].colour", "known keys are name, uplink_bytes_per_s"),
        (TWO + link("coast", "inland") + "delay = 1\n", "link[0].delay", "did you mean 'delay_s'?"),
        ("[[clusters]]\nname = 'coast'\n", "clusters", "'clusters' is not a known key; did you mean 'cluster'?"),
        (
            "[cluster]\nname = 'coast'\n",
            "cluster",
            "'cluster' is a single table; write [[cluster]] instead of [cluster]",
        ),
        ("", "cluster", "'cluster' is missing; add it"),
        ("[[cluster]]\n", "cluster[0].name", "'name' is missing; add it"),
        ("[[cluster]]\nname = 'a.b'\n", "cluster[0] (a.b).name", "is not a name"),
        (EDGE + "name = ''\n", "cluster[0] (coast).edge[0] ().name", "is not a name"),
        (EDGE + "link_delay_s = -1\n", "edge[0].link_delay_s", "greater than or equal to 0 (found -1)"),
        (EDGE + "link_delay_s = nan\n", "edge[0].link_delay_s", "found nan"),
        (EDGE + "link_delay_s = 61\n", "edge[0].link_delay_s", "less than or equal to 60"),
        (EDGE + "uplink_bytes_per_s = 0\n", "edge[0].uplink_bytes_per_s", "greater than 0"),
        (EDGE + "uplink_bytes_per_s = inf\n", "edge[0].uplink_bytes_per_s", "finite number"),
        (EDGE + "port = 70000\n", "edge[0].port", "less than or equal to 65535"),
        (EDGE + "port = 7000\n[[cluster.edge]]\nport = 7000\n", "broker coast-edge-1", "also the port of coast-edge-0"),
        ("[[cluster]]\nname = 'coast'\n" * 2, "cluster coast", "2 clusters have the name 'coast'"),
        (EDGE + "name = 'coast-head'\n", "broker coast-head", "2 brokers have the name 'coast-head'"),
        (f"[[cluster]]\nname = '{'c' * 48}'\n", f"head {'c' * 48}-head", "shorten the cluster's name"),
        (TWO, "link", "no link leads from coast to inland; add [[link]] tables"),
        (TWO + link("coast", "inlnad"), "link[0]", "there is no cluster 'inlnad'; did you mean 'inland'?"),
        (TWO + link("coast", "coast"), "link[0]", "coast is linked to itself"),
        (TWO + link("coast", "inland") * 2, "link[1]", "coast – inland – coast form a cycle"),
        (
            THREE + link("coast", "inland") + link("inland", "island") + link("island", "coast"),
            "link[2]",
            "the heads of island – inland – coast – island form a cycle; remove one of these links",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place_and_a_remedy(text: str, place: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.parse(text, "my.toml")
    assert caught.value.exit_code == EX_CONFIG
    assert place in caught.value.place
    assert words in str(caught.value)
    assert str(caught.value).startswith("topology my.toml")
    assert caught.value.remedy


def test_a_single_table_where_a_list_belongs_gets_the_brackets_explained() -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.parse("[cluster]\nname = 'coast'\n")
    assert "[[cluster]]" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[[cluster]\n", "is not TOML"),
        (b"name = 'ok'\nname = 'twice'\n", "line 2"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"#" * (SOURCE_BYTES_MAX + 1), "name the right file"),
    ],
)
def test_files_that_are_no_topology(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        Topology.load(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(TopologyError, match=r"can't be read .*; name a file that can be read"):
            Topology.load(path)


def test_telemetry_is_on_unless_told_otherwise_and_limits_are_for_heads() -> None:
    coast = "[[cluster]]\nname = 'coast'\n"
    assert Topology.parse(coast).telemetry.options("edge") == {"telemetry": True}
    text = coast + "[telemetry]\nenabled = false\nage_s = 60\nperiod_s = 2\n"
    spec = Topology.parse(text).telemetry
    assert spec.options("head") == {"telemetry": False, "telemetry_age_s": 60, "telemetry_period_s": 2.0}
    assert spec.options("edge") == {"telemetry": False, "telemetry_period_s": 2.0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("enable = false", "did you mean 'enabled'?"),
        ("age_s = 1", "greater than or equal to 60"),
        ("size_bytes = 1_000_000\nsegment_bytes = 2_000_000", "segment_bytes is larger than size_bytes"),
    ],
)
def test_telemetry_that_does_not_fit_is_named(line: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.parse(f"[[cluster]]\nname = 'coast'\n[telemetry]\n{line}\n")
    assert "telemetry" in caught.value.place
    assert words in str(caught.value)
