"""Spark over telemetry: from a head's stream to a lake of Parquet, and from the lake to tables that answer questions.

    raw messages ─ judging ─► typed records and quarantine ─ lake ─► attainment, balance, audit, rates, correlation

Every job is a function from DataFrames to DataFrames, in a module of its own, which starts nothing and writes nothing;
`jobs` names them, `runner` feeds and writes them. This module imports neither Spark nor anything that does: whoever
only wants to know which jobs there are can do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

LAKE: Final = "lake"
JOBS: Final[Mapping[str, str]] = MappingProxyType(
    {
        LAKE: "The streams of heads as typed Parquet by kind and date, each record exactly once; what is none apart.",
        "attainment": "Deadlines kept and latency quantiles, per subscription, topic pattern and cluster.",
        "balance": "How evenly edges are loaded, their states, and sessions, moves and returns per hour.",
        "audit": "What sessions were predicted to do against what they did, per policy and metric.",
        "rates": "Rates and burstiness per topic, what edges can serve, and rates to expect next.",
        "correlation": "Topics whose rates rise together.",
    }
)
"""All jobs, by name. All but the first read the lake."""
