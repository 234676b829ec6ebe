"""The cluster of `ews-burst` as an embedded cluster: Table V with its links, from the scenario of the simulator.

Bandwidths are those of the scenario: the load generator makes its messages as long on the wire as the papers say, so
that what an uplink is offered, in shares of its bandwidth, is what it is there. Subscribers are as far from the head as
from the edges, publishers beside it.

The head's own bandwidth is left out. In Table V it is twice what the whole workload asks of it in a burst, and a proxy
for everything that leaves the head would cost as much as those of all edges.
"""

from __future__ import annotations

from typing import Final

from tidegate_brokers.settings.balancing import BalancingOptions
from tidegate_embedded.topology import BrokerSpec, ClusterSpec, Topology
from tidegate_simulator.scenario import Scenario

CLUSTER: Final = "ews"


def topology_of(scenario: Scenario) -> Topology:
    """The embedded cluster that stands for a scenario with one head."""
    (head,) = scenario.heads
    return Topology(
        cluster=(
            ClusterSpec(
                name=CLUSTER,
                head=BrokerSpec(name=head.name, client_delay_s=max(edge.client_delay_s for edge in scenario.edges)),
                edge=tuple(
                    BrokerSpec(
                        name=edge.name,
                        uplink_bytes_per_s=edge.uplink_bytes_per_s,
                        downlink_bytes_per_s=edge.downlink_bytes_per_s,
                        matching_per_s=edge.matching_per_s,
                        link_delay_s=edge.head_delay_s,
                        client_delay_s=edge.client_delay_s,
                    )
                    for edge in scenario.edges
                ),
            ),
        ),
        balancing=_balancing(scenario),
    )


def _balancing(scenario: Scenario) -> BalancingOptions:
    wanted = scenario.balancing
    return BalancingOptions.model_validate(
        {
            "policy": wanted.policy,
            "policy_seed": wanted.seed,
            "threshold": str(wanted.threshold),
            "session_s_first": wanted.session_s_first,
            "queue_samples_needed": wanted.queue_samples_needed,
            "cooldown_s": wanted.cooldown_s,
            "stabilizing_min_s": wanted.stabilizing_min_s,
        }
    )
