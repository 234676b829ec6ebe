"""From an error to one line for a person and an exit code for a machine.

The packages below raise errors that already say what is wrong and what to do. This module only knows which exit code
each kind gets. An error that is not listed is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from .exit_codes import ExitCode


class CommandFailed(Exception):
    """A command could not do what it was asked; the text says why and what to do."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Options that an experiment refuses are a mistake on the command line (`nan` passes every range)."""
    from tidegate_simulator.errors import ScenarioError

    try:
        yield
    except (ValueError, ScenarioError) as error:
        raise click.UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Described:
    text: str
    code: int


def describe(error: BaseException) -> Described | None:
    """What to tell of `error`, or None if it is not one that a person can do something about."""
    if isinstance(error, BaseExceptionGroup):
        # A task group wraps what its tasks raise; the first that can be described is the cause.
        return next((found for inner in error.exceptions if (found := describe(inner)) is not None), None)
    from tidegate import AccessRefused, CertificateRefused, InvalidUrl, Refused, TidegateError
    from tidegate_analytics.errors import (
        AnalyticsError,
        InvalidOption,
        LakeEmpty,
        LakeMismatch,
        LakeMissing,
        SparkMissing,
        TablesMissing,
    )
    from tidegate_brokers.errors import BrokerError
    from tidegate_experiments.errors import ExperimentError
    from tidegate_protocol.errors import ProtocolError
    from tidegate_protocol.parts import RefusalReason
    from tidegate_simulator.errors import SimulatorError

    if isinstance(error, BrokerError):
        return Described(str(error), error.exit_code)
    if isinstance(error, Refused) and error.reason == RefusalReason.UNKNOWN:
        return Described(f"{error.message}; see `tidegate status` for what there is", ExitCode.BAD_INPUT)
    if isinstance(error, Refused) and error.reason == RefusalReason.NOT_ALLOWED:
        return Described(error.message, ExitCode.NO_PERMISSION)
    # The first that fits counts: a class stands before those it is derived from.
    kinds: dict[ExitCode, tuple[type[Exception], ...]] = {
        ExitCode.NO_PERMISSION: (AccessRefused,),
        ExitCode.BAD_CONFIGURATION: (CertificateRefused, InvalidUrl, SparkMissing, LakeMismatch),
        ExitCode.BAD_INPUT: (SimulatorError, ProtocolError, InvalidOption, LakeEmpty, LakeMissing, TablesMissing),
        ExitCode.UNAVAILABLE: (TidegateError,),
        ExitCode.FAILED: (CommandFailed, ExperimentError, AnalyticsError),
    }
    return next((Described(str(error), code) for code, those in kinds.items() if isinstance(error, those)), None)
