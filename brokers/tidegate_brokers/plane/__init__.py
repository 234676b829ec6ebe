"""The data plane in RabbitMQ: exchanges, queues, routes and shovels, and the worker that changes them."""
