"""Links that can't be jammed: what their far ends refuse is set aside, and everything behind it goes on.

| module | what |
| --- | --- |
| `watching` | tells from RabbitMQ's own words which links make no progress |
| `refusals` | why a message was refused, and which others would be |
| `relay` | carries the messages of one link by hand, carefully, and sets aside what is refused |
| `quarantine` | where those messages are kept, bounded |
| `rescue` | puts a relay in the place of a shovel for a moment |
| `desk` | what operators ask of the quarantine |
| `limits` | whether both ends of a link take the same |
"""
