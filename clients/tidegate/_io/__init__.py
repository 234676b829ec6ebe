"""Connections of the SDK: asyncio by aio-pika, threads by pika."""
