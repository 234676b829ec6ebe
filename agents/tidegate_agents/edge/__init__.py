"""EMA, the agent of an edge: its output queues, its side of sessions, its answers to operators."""
