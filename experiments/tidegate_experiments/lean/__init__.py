"""Lean clients: AMQP with as little work per message as possible, around the SDK's own machines."""
