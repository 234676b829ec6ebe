"""What a session is offered: candidates with their load, and as much else as fits into a control message.

Invariants:

- what a candidate was promised by running migrations is part of its load;
- the names of each kind take at most their share of the bytes, whatever there is to name; what remains is enough for
  the rest of the message. The first ones are kept, so the order decides. A pattern that is not named is taken for one
  that its candidate does not carry yet, which only makes an estimate more careful; and the move of a resting queue that
  is not named is refused when its plan comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.messages import CONTROL_BYTES_MAX

from ..context import HeadContext

PATTERNS_BYTES_MAX: Final = CONTROL_BYTES_MAX // 2
"""For the patterns of all candidates together."""
RESTING_BYTES_MAX: Final = CONTROL_BYTES_MAX // 4


def candidate(context: HeadContext, load: BrokerLoad, wanted: Iterable[str], extra_path_us: int = 0) -> Candidate:
    """An edge of ours that told this load, with those of the `wanted` patterns that it carries already."""
    record = context.registry.edges.get(load.broker)
    return Candidate(
        cluster=context.config.cluster,
        head=context.config.head,
        load=context.promises.added_to(load, context.now),
        patterns=() if record is None else tuple(pattern for pattern in wanted if pattern in record.patterns),
        extra_path_us=extra_path_us,
    )


def fitting(names: Iterable[str], bytes_max: int) -> tuple[str, ...]:
    """As many of these as have room, from the first one on."""
    kept, left = [], bytes_max
    for name in names:
        left -= _size(name)
        if left < 0:
            break
        kept.append(name)
    return tuple(kept)


def fitting_candidates(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The candidates, each with as many of its patterns as its share has room for. What one of them does not need of
    its share, the others have.
    """
    sizes = [sum(map(_size, candidate.patterns)) for candidate in candidates]
    if sum(sizes) <= PATTERNS_BYTES_MAX:
        return tuple(candidates)
    found, left = list(candidates), PATTERNS_BYTES_MAX
    for done, place in enumerate(sorted(range(len(found)), key=sizes.__getitem__)):
        share = left // (len(found) - done)
        if sizes[place] > share:
            patterns = fitting(found[place].patterns, share)
            found[place] = found[place].model_copy(update={"patterns": patterns})
        left -= min(sizes[place], share)
    return tuple(found)


def _size(name: str) -> int:
    """Of a name in a list, as JSON: with its quotes and a comma."""
    return len(name.encode()) + name.count('"') + name.count("\\") + 3
