"""Every decision of Tidegate, as pure state machines: events in, actions out.

No I/O, no clock, no randomness. `handle(event, now)` changes the machine's own state and returns what has to
be done; a runtime does it, on AMQP in production and in virtual time in a simulation, and reports back with
further events.
"""
