"""Which names of clients belong to which account of RabbitMQ."""

from __future__ import annotations


def owns(user: str, client: str) -> bool:
    """Whether an account may speak for a client: of the same name, or of one that begins with it and a hyphen.

    `client` may be a publisher's id, whose incarnation does not matter.
    """
    name = client.partition("~")[0]
    return bool(user) and (name == user or name.startswith(f"{user}-"))
