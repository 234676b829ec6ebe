"""Experiments on the simulator: a scenario, a recorder that watches it run, and a result of plain numbers."""
