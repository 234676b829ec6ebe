"""What processes agree on: control messages, topics, ids, names and the public message form.

Knows nothing of connections, clocks or decisions; every other package imports it and it imports none of them.
"""
