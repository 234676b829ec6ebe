"""Which streams a broker has, from its management API; for `streamsPattern` only."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote

from .errors import AccessRefused, InvalidOption, ListingFailed
from .link import tls_context
from .options import STREAMS_MAX, Broker, Endpoint, Tls

TIMEOUT_S: Final = 10.0
PAGE_SIZE: Final = 500
PAGES_MAX: Final = 1_000


def list_streams(broker: Broker, pattern: str, tls: Tls) -> list[str]:
    """The names of all streams that match `pattern` from beginning to end, sorted."""
    assert broker.management is not None
    names = re.compile(pattern)
    found: list[str] = []
    for page in range(1, PAGES_MAX + 1):
        answer = _page(broker.management, broker.virtual_host, page, tls)
        items = answer.get("items", [])
        found += [str(item["name"]) for item in items if item.get("type") == "stream" and names.fullmatch(item["name"])]
        if len(found) > STREAMS_MAX:
            raise InvalidOption("streamsPattern", f"more than {STREAMS_MAX} streams match", "make it narrower")
        if page >= int(answer.get("page_count", 0)):
            break
    return sorted(set(found))


def _page(api: Endpoint, virtual_host: str, page: int, tls: Tls) -> dict[str, Any]:
    path = f"/api/queues/{quote(virtual_host, safe='')}?page={page}&page_size={PAGE_SIZE}&columns=name,type"
    credentials = base64.b64encode(f"{api.user}:{api.password}".encode()).decode()
    request = urllib.request.Request(api.address + path, headers={"Authorization": f"Basic {credentials}"})
    # RabbitMQ is a neighbour: no proxy of the environment stands in between.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if api.secure:
        handlers.append(urllib.request.HTTPSHandler(context=tls_context(tls)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as answer:
            value = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise AccessRefused(api.address, f"the management API answers {error.code}") from None
        raise ListingFailed(api.address, f"HTTP {error.code}") from None
    except (OSError, ValueError) as error:
        raise ListingFailed(api.address, str(error)) from None
    if not isinstance(value, dict):
        raise ListingFailed(api.address, "an answer of another form")
    return value
