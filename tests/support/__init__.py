"""What several tests share: load, brute-force truth, waiting on conditions, RabbitMQ in containers."""
