"""The SDK: publish and subscribe, with a deadline on every subscription.

    from tidegate import Publisher, Subscriber            # threads, on pika
    from tidegate import AsyncPublisher, AsyncSubscriber  # asyncio, on aio-pika

What is not listed in `__all__` is private and may change.
"""

from __future__ import annotations

from importlib.metadata import version

from ._async_publisher import AsyncPublisher, AsyncReceipt
from ._async_subscriber import AsyncSubscriber, AsyncSubscription
from ._core.config import Backoff, Limits, Timeouts
from ._core.errors import (
    AccessRefused,
    CertificateRefused,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    HeadSilent,
    InvalidMessage,
    InvalidName,
    InvalidTopic,
    InvalidUrl,
    InvalidValue,
    NotConfirmed,
    PeerError,
    Refused,
    TidegateError,
    TimedOut,
    UnexpectedReply,
)
from ._core.message import Message
from ._core.statistics import Statistics
from ._engine.publisher import PublisherStatistics
from ._sync_publisher import Publisher, Receipt
from ._sync_subscriber import Subscriber, Subscription

__version__ = version("tidegate")

__all__ = [
    "AccessRefused",
    "AsyncPublisher",
    "AsyncReceipt",
    "AsyncSubscriber",
    "AsyncSubscription",
    "Backoff",
    "CertificateRefused",
    "Closed",
    "ConnectionFailed",
    "ConnectionLost",
    "HeadSilent",
    "InvalidMessage",
    "InvalidName",
    "InvalidTopic",
    "InvalidUrl",
    "InvalidValue",
    "Limits",
    "Message",
    "NotConfirmed",
    "PeerError",
    "Publisher",
    "PublisherStatistics",
    "Receipt",
    "Refused",
    "Statistics",
    "Subscriber",
    "Subscription",
    "TidegateError",
    "TimedOut",
    "Timeouts",
    "UnexpectedReply",
    "__version__",
]
