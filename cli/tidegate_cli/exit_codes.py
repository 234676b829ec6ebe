"""The exit codes of the process. Their numbers are from sysexits.h, so that supervisors already know them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Zero is success, two a wrong command line (click's own), the rest is here."""

    OK = 0
    FAILED = 1
    """The command ran, and what it checked did not hold (messages lost, a run that is not valid, a schedule that
    failed)."""
    USAGE = 2
    BAD_INPUT = 65
    """A topic, pattern, deadline, body or attribute that breaks a rule, a scenario that is impossible."""
    UNAVAILABLE = 69
    """RabbitMQ or the head's process can't be reached."""
    INVALID_RUN = 75
    """A measurement was finished, but the machine or the load generator was what it measured: try again when it is
    quieter."""
    NOT_YET = 75
    """What was asked for is under way, but was not done in the time given."""
    NO_PERMISSION = 77
    """Wrong user or password, or a right that is missing."""
    BAD_CONFIGURATION = 78
    """A configuration or topology file, a variable or an option that does not fit."""
    INTERRUPTED = 130
