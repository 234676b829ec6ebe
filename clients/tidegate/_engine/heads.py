"""The heads of a client, and a control connection to each of them.

A client knows one head at its start, its home. A migration into another cluster makes it belong to another head.

Invariant: the client listens to a head for as long as a subscription belongs to that head or owes it a report. It
listens to its home before the first subscription too, and may ask its home at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.names import client_key

from .._core.config import Address, Backoff, Timeouts
from .._core.errors import InvalidUrl
from .control import Control, ReplyTo
from .runtime import Runtime

logger = logging.getLogger(__name__)

OnHeadOrder = Callable[[str, ControlMessage, ReplyTo | None], None]
"""The head an order came from (as `Heads.key` names it), the order, where to answer."""


class Heads:
    """Control connections by head, and who needs them."""

    def __init__(
        self,
        runtime: Runtime,
        home: Address,
        client: str,
        connection_name: str,
        timeouts: Timeouts,
        backoff: Backoff,
        on_order: OnHeadOrder,
    ) -> None:
        self._runtime = runtime
        self._address = home
        self._client = client
        self._name = connection_name
        self._timeouts = timeouts
        self._backoff = backoff
        self._on_order = on_order
        self.home = Control(runtime, home, connection_name, timeouts, backoff)
        self._home_key = str(home)
        self._controls: dict[str, Control] = {self._home_key: self.home}
        self._users: dict[str, set[object]] = {}

    def key(self, url: str) -> str:
        """The name of a head here; an empty URL is home."""
        try:
            return str(self._address.at(url)) if url else self._home_key
        except InvalidUrl:
            return url

    async def open(self) -> None:
        """Connect to the head that the client was given; raise what went wrong."""
        await self.home.open()
        self._listen(self._home_key)

    def control(self, url: str) -> Control:
        """The way to a head; raise `InvalidUrl` where there is none."""
        key = self.key(url)
        if key not in self._controls:
            address = self._address.at(url)
            self._controls[key] = Control(self._runtime, address, self._name, self._timeouts, self._backoff)
        return self._controls[key]

    def join(self, url: str, user: object) -> None:
        """`user` belongs to this head: its orders are listened to."""
        key = self.key(url)
        try:
            self.control(url)
        except InvalidUrl as error:
            logger.error("%s: cannot connect to the head it belongs to; orders do not reach it: %s", self._name, error)
            return
        self._users.setdefault(key, set()).add(user)
        self._listen(key)

    def leave(self, url: str, user: object) -> None:
        """`user` has nothing to do with this head any more."""
        self._leave(self.key(url), user)

    def forget(self, user: object) -> None:
        """`user` has nothing to do with any head any more."""
        for key in list(self._users):
            self._leave(key, user)

    def belongs(self, key: str, user: object) -> bool:
        return user in self._users.get(key, ())

    async def close(self) -> None:
        for control in list(self._controls.values()):
            await control.close()
        self._controls = {self._home_key: self.home}
        self._users.clear()

    def _listen(self, key: str) -> None:
        self._controls[key].listen(client_key(self._client), partial(self._on_order, key))

    def _leave(self, key: str, user: object) -> None:
        users = self._users.get(key, set())
        users.discard(user)
        if users:
            return
        self._users.pop(key, None)
        if key != self._home_key:
            control = self._controls.pop(key, None)
            if control is not None:
                self._runtime.spawn(control.close(), f"{control} closes")
        elif self._users:
            # All subscriptions have moved to other clusters, and home has been told so.
            self._runtime.spawn(self.home.stop_listening(), f"{self.home} stops listening")
