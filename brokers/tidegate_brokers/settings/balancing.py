"""The options of load management: the same for all brokers of a cluster, in a broker's file or in a topology.

They are a subset of what the agents can be told (`tidegate_agents.config.BalancingConfig`): what an operator or an
experiment has reason to change. The rest keeps its default there.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tidegate_agents.config import BalancingConfig
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.policy import POLICIES, policy_named

_DEFAULT: Final = BalancingConfig()


def unit(name: str) -> dict[str, Any]:
    """For the reference of options: in what a number is given."""
    return {"unit": name}


def _known(policy: str) -> str:
    policy_named(policy)
    return policy


class BalancingOptions(BaseModel):
    """How load is watched and moved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Annotated[str, AfterValidator(_known)] = Field(
        _DEFAULT.policy,
        description="Who decides whether, whom and where to move: "
        f"{', '.join(f'`{name}`' for name in sorted(POLICIES))}. `none` watches and moves nobody.",
    )
    policy_seed: int = Field(_DEFAULT.seed, ge=0, description="Seed of the policy `random`.")
    threshold: Literal["projected", "paper"] = Field(
        "projected", description="How the number of messages that may wait follows from a deadline."
    )
    margin: float = Field(
        _DEFAULT.margin, ge=0, lt=1, description="Share of the allowed wait that is kept in reserve (`projected`)."
    )
    sample_period_s: float = Field(
        _DEFAULT.period_s, ge=0.2, le=60, description="How often load is sampled and judged.",
        json_schema_extra=unit("s"),
    )  # fmt: skip
    session_s_first: float = Field(
        _DEFAULT.session_s_first, gt=0, le=60,
        description="How long a session is expected to take until some have been seen.", json_schema_extra=unit("s"),
    )  # fmt: skip
    queue_samples_needed: int = Field(
        _DEFAULT.queue_samples_needed, ge=1, le=100,
        description="In how many samples in a row a queue must be above its threshold before anything is done.",
        json_schema_extra=unit("samples"),
    )  # fmt: skip
    migration_timeout_s: float = Field(
        _DEFAULT.migration_timeout_s, gt=0, le=600,
        description="How long a client may take to move before it goes back.", json_schema_extra=unit("s"),
    )  # fmt: skip
    session_timeout_s: float = Field(
        _DEFAULT.session_timeout_s, gt=0, le=3600, description="How long a session may take in all.",
        json_schema_extra=unit("s"),
    )  # fmt: skip
    migrations_max: int = Field(
        _DEFAULT.migrations_max, ge=1, le=10_000, description="Clients of a cluster that move at the same time."
    )
    cooldown_s: float = Field(
        _DEFAULT.cooldown_s, ge=0, le=86_400, description="How long a client that was moved is left alone.",
        json_schema_extra=unit("s"),
    )  # fmt: skip
    stabilizing_min_s: float = Field(
        _DEFAULT.stabilizing_min_s, ge=0, le=600, description="Least time between two sessions of one broker.",
        json_schema_extra=unit("s"),
    )  # fmt: skip
    edge_away_s: float = Field(
        _DEFAULT.edge_away_s, gt=0, le=3600,
        description="An edge silent for this long loses subscribers that can't reach it.", json_schema_extra=unit("s"),
    )  # fmt: skip
    publisher_messages_per_s_max: float | None = Field(
        None, gt=0, description="What one publisher may send before it is slowed down.",
        json_schema_extra=unit("messages/s"),
    )  # fmt: skip
    publisher_bytes_per_s_max: float | None = Field(
        None, gt=0, description="The same in bytes.", json_schema_extra=unit("bytes/s")
    )
    useless_messages_per_s_max: float | None = Field(
        None, gt=0, description="What one publisher may send on topics that nobody subscribes to.",
        json_schema_extra=unit("messages/s"),
    )  # fmt: skip
    slow_subscriber_messages_max: int = Field(
        _DEFAULT.slow_subscriber_messages_max, ge=1,
        description="What may wait for a subscriber that is too slow; beyond it the oldest is dropped and counted.",
        json_schema_extra=unit("messages"),
    )  # fmt: skip

    @property
    def for_agents(self) -> BalancingConfig:
        """As agents want it."""
        return BalancingConfig(
            policy=self.policy,
            seed=self.policy_seed,
            threshold=ThresholdKind(self.threshold),
            margin=self.margin,
            session_s_first=self.session_s_first,
            period_s=self.sample_period_s,
            queue_samples_needed=self.queue_samples_needed,
            migration_timeout_s=self.migration_timeout_s,
            session_timeout_s=self.session_timeout_s,
            stabilizing_min_s=self.stabilizing_min_s,
            stabilizing_max_s=max(_DEFAULT.stabilizing_max_s, self.stabilizing_min_s),
            cooldown_s=self.cooldown_s,
            migrations_max=self.migrations_max,
            edge_away_s=self.edge_away_s,
            publisher_messages_per_s_max=self.publisher_messages_per_s_max,
            publisher_bytes_per_s_max=self.publisher_bytes_per_s_max,
            useless_messages_per_s_max=self.useless_messages_per_s_max,
            slow_subscriber_messages_max=self.slow_subscriber_messages_max,
        )
