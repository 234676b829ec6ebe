"""Errors of experiments and benchmarks.

ExperimentError         root
└── MeasurementFailed   a benchmark could not measure what it was asked to; the text says why and what to do
"""

from __future__ import annotations


class ExperimentError(Exception):
    """Root of this package's errors."""


class MeasurementFailed(ExperimentError):
    """A benchmark could not measure what it was asked to. The text says why and what to do."""
