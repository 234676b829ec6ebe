"""RabbitMQ's `/metrics/detailed`, as text, read into numbers per queue, or per channel and queue.

Only what is asked for is looked at: metric by metric, within the lines that belong to it, and only lines whose labels
are exactly those of the virtual host and of a queue of ours. RabbitMQ 3.10 escapes nothing in a label, so that a queue
of somebody else's may look like anything, a line of ours included; therefore a line must match from its first to its
last character, and a name with a quote or a backslash in it is never one of ours.

A thousand idle queues say the same in every answer. Lines that are those of the last answer are therefore not read
again: the very same object comes back, which nobody may change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar, cast

READY: Final = "rabbitmq_detailed_queue_messages_ready"
UNACKED: Final = "rabbitmq_detailed_queue_messages_unacked"
CONSUMERS: Final = "rabbitmq_detailed_queue_consumers"
MESSAGES: Final = "rabbitmq_detailed_queue_messages"
MESSAGE_BYTES: Final = "rabbitmq_detailed_queue_messages_bytes"
OLDEST: Final = "rabbitmq_detailed_queue_head_message_timestamp"
PUBLISHED: Final = "rabbitmq_detailed_queue_messages_published_total"
ACKED: Final = "rabbitmq_detailed_channel_messages_acked_total"
RECEIVED: Final = "rabbitmq_detailed_channel_messages_published_total"

T = TypeVar("T")

_NUMBER: Final = r"(-?[0-9][0-9.e+-]*)"
_OURS: Final = r'[^"\\\n]*'

Counter = tuple[str, str, float]
"""Channel, queue or exchange, count."""


Parse = Callable[[str], T]


class ExpositionReader:
    """Reads the answers for one virtual host, one after the other."""

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self._read: dict[tuple[str, str], tuple[str, object]] = {}
        """What was read from which lines, by metric and prefix; as many as there are metrics to ask for."""

    def read(self, text: str) -> Exposition:
        """The next answer."""
        return Exposition(text, self)

    def parsed(self, metric: str, prefix: str, section: str, parse: Parse[T]) -> T:
        """What these lines say; the object of the last time if they have not changed."""
        before = self._read.get((metric, prefix))
        if before is not None and before[0] == section:
            return cast(T, before[1])
        found = parse(section)
        self._read[metric, prefix] = (section, found)
        return found


class Exposition:
    """One answer. Reading a metric that is not in it gives nothing."""

    def __init__(self, text: str, reader: ExpositionReader) -> None:
        self._text = text
        self._reader = reader

    def has(self, metric: str) -> bool:
        """Whether the answer names this metric at all: an old RabbitMQ may not know it."""
        return self._start(metric) >= 0

    def per_queue(self, metric: str, prefix: str) -> Mapping[str, float]:
        """The value of each queue whose name starts with `prefix`; those without a number are left out."""
        pattern = _per_queue(metric, self._reader.vhost, prefix)
        return self._parsed(metric, prefix, lambda lines: {q: float(value) for q, value in pattern.findall(lines)})

    def per_channel_queue(self, metric: str, prefix: str) -> Sequence[Counter]:
        """Counters of each channel and queue."""
        pattern = _per_channel_queue(metric, self._reader.vhost, prefix)
        return self._parsed(metric, prefix, lambda lines: [(c, q, float(n)) for c, q, n in pattern.findall(lines)])

    def enqueued(self, prefix: str) -> Sequence[Counter]:
        """What each channel has put into each queue, whatever exchange it came through."""
        pattern = _enqueued(self._reader.vhost, prefix)
        return self._parsed(
            PUBLISHED, prefix, lambda lines: [(c + " " + e, q, float(n)) for c, q, e, n in pattern.findall(lines)]
        )

    def received(self, prefix: str) -> Sequence[Counter]:
        """What each channel has published to each exchange whose name starts with `prefix`."""
        pattern = _received(self._reader.vhost, prefix)
        return self._parsed(RECEIVED, prefix, lambda lines: [(c, e, float(n)) for c, e, n in pattern.findall(lines)])

    def _parsed(self, metric: str, prefix: str, parse: Parse[T]) -> T:
        return self._reader.parsed(metric, prefix, self._section(metric), parse)

    def _start(self, metric: str) -> int:
        header = f"# TYPE {metric} "
        return 0 if self._text.startswith(header) else self._text.find("\n" + header)

    def _section(self, metric: str) -> str:
        """The lines of one metric: from its header to the next one."""
        start = self._start(metric)
        if start < 0:
            return ""
        end = self._text.find("\n# TYPE ", start + 1)
        return self._text[start:end] if end >= 0 else self._text[start:]


def _labels(vhost: str) -> str:
    """The virtual host as it may be written: as it is (3.10), or escaped as Prometheus wants it."""
    escaped = vhost.replace("\\", "\\\\").replace('"', '\\"')
    return re.escape(vhost) if escaped == vhost else f"(?:{re.escape(vhost)}|{re.escape(escaped)})"


@lru_cache(maxsize=64)
def _per_queue(metric: str, vhost: str, prefix: str) -> re.Pattern[str]:
    return re.compile(
        rf'^{metric}\{{vhost="{_labels(vhost)}",queue="({re.escape(prefix)}{_OURS})"\}} {_NUMBER}$', re.MULTILINE
    )


@lru_cache(maxsize=64)
def _per_channel_queue(metric: str, vhost: str, prefix: str) -> re.Pattern[str]:
    labels = rf'channel="({_OURS})",vhost="{_labels(vhost)}",queue="({re.escape(prefix)}{_OURS})"'
    return re.compile(rf"^{metric}\{{{labels}\}} {_NUMBER}$", re.MULTILINE)


@lru_cache(maxsize=64)
def _enqueued(vhost: str, prefix: str) -> re.Pattern[str]:
    name = _labels(vhost)
    labels = (
        rf'channel="({_OURS})",queue_vhost="{name}",queue="({re.escape(prefix)}{_OURS})",'
        rf'exchange_vhost="{name}",exchange="({_OURS})"'
    )
    return re.compile(rf"^{PUBLISHED}\{{{labels}\}} {_NUMBER}$", re.MULTILINE)


@lru_cache(maxsize=64)
def _received(vhost: str, prefix: str) -> re.Pattern[str]:
    labels = rf'channel="({_OURS})",vhost="{_labels(vhost)}",exchange="({re.escape(prefix)}{_OURS})"'
    return re.compile(rf"^{RECEIVED}\{{{labels}\}} {_NUMBER}$", re.MULTILINE)
