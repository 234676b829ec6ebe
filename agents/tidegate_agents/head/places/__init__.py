"""Places of subscriptions on edges: granted, prepared, in doubt, removed."""
