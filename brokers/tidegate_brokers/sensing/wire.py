"""How many bytes a message of ours takes on the wire, beyond its body: AMQP's frames, our properties, names.

RabbitMQ tells what bodies amount to, not what it sends. The rest follows from the message form (`tidegate_protocol.
form`): everything of fixed length exactly, the topic from the subscription's pattern, the rest by what is usual. Within
a few per cent of what passes a link; attributes an application adds are not known here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tidegate_protocol.amqp.publications import delivery_overhead_bytes
from tidegate_protocol.names import DELIVER_EXCHANGE

ID_MARKS_BYTES: Final = 2
"""The marks between the parts of an id."""
NAMES_BYTES: Final = 22
"""Publisher's id, sequence and consumer's tag together, as they usually are; all counted as the id's."""
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
    message_id = topic + ID_MARKS_BYTES + NAMES_BYTES
    return delivery_overhead_bytes(len(DELIVER_EXCHANGE), topic, message_id, consumer_tag=0)
