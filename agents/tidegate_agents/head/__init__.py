"""HMA, the agent of a head: its edges, its neighbours, and every decision of a cluster."""
