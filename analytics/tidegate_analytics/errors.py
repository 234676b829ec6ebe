"""Errors of the analytics.

    AnalyticsError
    ├── SparkMissing        PySpark or Java is not there, or can't be used      .what
    ├── InvalidOption       the caller's mistake                                .option .problem .remedy
    ├── LakeMissing         there is no lake in that directory                  .path
    ├── LakeEmpty           there is one, with nothing in it to show            .path
    ├── TablesMissing       there are no tables in that directory               .path
    ├── LakeMismatch        a lake and the checkpoint of its query disagree     .path .problem
    └── QueryFailed         Spark could not do it                               .problem

Each says what is wrong and what to do. A bad record is none of these: it goes to the quarantine, and work goes on.
"""

from __future__ import annotations


class AnalyticsError(Exception):
    """Root of this package's errors."""


class SparkMissing(AnalyticsError):
    """What Spark needs is not installed."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        super().__init__(f"analytics needs Spark: {what}; {remedy}")


class InvalidOption(AnalyticsError, ValueError):
    """An option of a job that makes no sense."""

    def __init__(self, option: str, problem: str, remedy: str) -> None:
        self.option = option
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{option}: {problem}; {remedy}")


class LakeMissing(AnalyticsError):
    """No batch was ever committed there."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"there is no lake in {path}: make one with `tidegate analytics run lake --url … --out {path}`"
        )


class TablesMissing(AnalyticsError):
    """No job has written there what an insight is made of."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"there is no table correlation, forecast or service in {path}: make them with `tidegate analytics run "
            f"correlation` and `tidegate analytics run rates`, with --out {path}"
        )


class LakeEmpty(AnalyticsError):
    """No record of the chosen time says what happened."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"the lake in {path} has no records of load, clients or sessions at that time: choose another with --since "
            f"and --until, or see in `tidegate telemetry tail` whether brokers write any"
        )


class LakeMismatch(AnalyticsError):
    """Going on would lose records or write them twice."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"lake {path}: {problem}; put its _checkpoint back as it was, or write to a new directory")


class QueryFailed(AnalyticsError):
    """Spark gave up: a broken input, a full disk, a stream that is gone."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"Spark gave up: {problem}; once that is mended, run it again: nothing is lost or doubled")
