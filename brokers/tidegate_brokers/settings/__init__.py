"""Options of head and edge processes: their types, how they are read, addresses and certificates."""
