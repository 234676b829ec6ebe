"""Head and edge processes on RabbitMQ: links, routes, output queues, the agents' runtime.

Nothing here decides: decisions come from `tidegate_agents` and are carried out here, on a real RabbitMQ.
"""
