"""The demo's early-warning network in miniature: its story as data, and the clients that play it."""
