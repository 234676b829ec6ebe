"""Benchmarks: what is compared runs side by side and interleaved in one run, and ratios are what counts.

Absolute rates depend on the machine and on who else uses it; the median ratio of several interleaved rounds does not.
"""
