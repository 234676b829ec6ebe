"""A real cluster as child processes of this one: RabbitMQ nodes, link conditioners, head and edge processes.

Import from the modules: `cluster` is the entrance, `nodes` starts bare RabbitMQ nodes, `conditioner` shapes links,
`guard` and `guardian` see to it that nothing stays behind. This file imports nothing, because every child starts here.
"""
