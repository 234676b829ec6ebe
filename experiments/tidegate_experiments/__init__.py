"""The papers' experiments, rate mode, lean clients, live runs and benchmarks: everything that is measured."""
