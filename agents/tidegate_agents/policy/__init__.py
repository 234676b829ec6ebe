"""The policies by name. Each is one module here; the interface they share is `tidegate_agents.policy.interface`.

The name of a policy that does not exist is an error, which tells the names of those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from .interface import Policy
from .none import NonePolicy
from .peer import PeerPolicy
from .peer_wd import PeerWdPolicy
from .random_ import RandomPolicy

POLICIES: Final[Mapping[str, Callable[[int], Policy]]] = MappingProxyType(
    {
        "none": lambda seed: NonePolicy(),
        "peer": lambda seed: PeerPolicy(),
        "peer-wd": lambda seed: PeerWdPolicy(),
        "random": lambda seed: RandomPolicy(seed),
    }
)
"""How each is made; only `random` has use for the seed."""


def policy_named(name: str, seed: int = 0) -> Policy:
    """The policy of this name. Raises ValueError, naming those there are, if there is none."""
    make = POLICIES.get(name)
    if make is None:
        raise ValueError(f"no policy {name!r}: there are {', '.join(sorted(POLICIES))}")
    return make(seed)
