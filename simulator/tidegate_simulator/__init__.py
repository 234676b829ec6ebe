"""A deterministic cluster in virtual time that runs the very agents and client machines of production."""
