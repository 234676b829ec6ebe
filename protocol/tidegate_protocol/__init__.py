"""What processes agree on: control messages, decisions and their words, telemetry, topics, ids, and the message form.

Knows nothing of connections and clocks. Every other package imports this one, and it imports none of them.
"""
