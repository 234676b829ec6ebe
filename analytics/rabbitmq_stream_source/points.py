"""Where to begin and where to end, as the user says it: startingOffsets and endingOffsets.

A point is `earliest`, `latest`, an offset, or a time. One point may be given for all streams, or JSON with one per
stream (`{"name": point}`) or per broker and stream (`{"broker": {"name": point}}`). Streams that the JSON leaves out
get the default of the option.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from .errors import InvalidOption
from .offsets import StreamKey

Point = Literal["earliest", "latest"] | int | datetime
"""An offset is a number; a time always has a zone."""

EARLIEST: Final[Point] = "earliest"
LATEST: Final[Point] = "latest"
_REMEDY: Final = (
    'give earliest, latest, an offset, a time as 2024-05-01T12:00:00Z, or JSON as {"stream": 17} or '
    '{"broker": {"stream": "latest"}}'
)


@dataclass(frozen=True, slots=True)
class Points:
    """A point for every stream. `streams` and `pairs` are what was said of some in particular."""

    option: str
    default: Point
    streams: Mapping[str, Point]
    pairs: Mapping[StreamKey, Point]
    given: bool = True

    def of(self, key: StreamKey) -> Point:
        return self.pairs.get(key, self.streams.get(key.stream, self.default))

    def check_names(self, keys: Iterable[StreamKey]) -> None:
        """A name that no stream has is a mistake, not a wish."""
        known = set(keys)
        missing = [name for name in self.streams if name not in {key.stream for key in known}]
        missing += [f"{key.stream} of {key.broker}" for key in self.pairs if key not in known]
        if missing:
            raise InvalidOption(self.option, f"there is no stream {missing[0]}", "name streams that are read")


def parse_points(option: str, text: str | None, default: Point) -> Points:
    """Read the option's value; nothing means `default` for all."""
    if text is None:
        return Points(option, default, {}, {}, given=False)
    if not text.startswith("{"):
        return Points(option, _point(option, text), {}, {})
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, f"broken JSON ({error})", _REMEDY) from None
    streams: dict[str, Point] = {}
    pairs: dict[StreamKey, Point] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            pairs.update({StreamKey(name, stream): _point(option, point) for stream, point in inner.items()})
        else:
            streams[name] = _point(option, inner)
    return Points(option, default, streams, pairs)


def _point(option: str, value: Any) -> Point:
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and int(value) < 2**63:
            return int(value)
        try:
            time = datetime.fromisoformat(value)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        except ValueError:
            pass
    raise InvalidOption(option, f"{value!r} is no point in a stream", _REMEDY)
