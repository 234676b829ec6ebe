"""Experiments on a real cluster: an embedded RabbitMQ with conditioned links, and load from lean clients.

The lean clients speak AMQP with as little work per message as Python allows, so that the load does not distort what is
measured; what moves a subscription and what tells a repetition from news are the machines of the SDK, as they are.
"""
