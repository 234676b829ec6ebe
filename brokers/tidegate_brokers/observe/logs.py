"""How a process logs: for people on a terminal, one JSON object per line otherwise. Called by mains only.

Libraries whose own lines repeat what we log, or could show an address, are kept quiet.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUIET: Final = {
    "aiormq": logging.CRITICAL,
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "asyncio": logging.WARNING,
}


def set_up_logging(level: str, form: str = "auto", stream: TextIO | None = None) -> None:
    """Install the one handler of this process."""
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and value not in ({}, None)}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and what the line carries besides."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, object] = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class HumanFormatter(logging.Formatter):
    """Time of day, level, message, details."""

    def format(self, record: logging.LogRecord) -> str:
        details = " ".join(f"{key}={value}" for key, value in _extras(record).items())
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{moment} {record.levelname.lower():7} {record.getMessage()}" + (f"  ({details})" if details else "")
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")
