"""How many bytes a message of ours takes on the wire, beyond its body: AMQP's frames, our properties, names.

RabbitMQ tells what bodies amount to, not what it sends. The rest follows from the message form (`tidegate_protocol.
form`): everything of fixed length exactly, the topic from the subscription's pattern, the rest by what is usual. Within
a few per cent of what passes a link; attributes an application adds are not known here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tidegate_protocol.form import PUBLISHED_HEADER
from tidegate_protocol.names import DELIVER_EXCHANGE

FRAME_BYTES: Final = 8
"""Type, channel, length and end of a frame; a delivery has three of them."""
METHOD_BYTES: Final = 4 + 1 + 8 + 1 + 1 + len(DELIVER_EXCHANGE) + 1
"""basic.deliver without the consumer's tag and the topic."""
HEADER_BYTES: Final = 14 + (4 + 1 + len(PUBLISHED_HEADER) + 1 + 8) + 1 + 1 + 2 + 8
"""Class, size and flags; the table with the publish time; delivery mode; the marks in the id; the timestamp."""
NAMES_BYTES: Final = 22
"""Publisher's id, sequence and consumer's tag together, as they usually are."""
ANY_WORD_BYTES: Final = 6
"""What `*` stands for, usually."""
ANY_WORDS_BYTES: Final = 10
"""What `#` stands for, usually."""


@lru_cache(maxsize=50_000)
def wire_overhead_bytes(pattern: str) -> int:
    """What is added to the body of a message on a topic of this pattern. The topic is in it twice."""
    words = pattern.split(".")
    sizes = {"*": ANY_WORD_BYTES, "#": ANY_WORDS_BYTES}
    topic = sum(sizes.get(word, len(word)) for word in words) + len(words) - 1
    return 3 * FRAME_BYTES + METHOD_BYTES + HEADER_BYTES + NAMES_BYTES + 2 * topic
