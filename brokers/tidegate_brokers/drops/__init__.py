"""What RabbitMQ drops from output queues: read, counted, kept in a bounded stream, and replayed when an operator says.

    output queue → exchange tidegate.dropped → queue tidegate.dropped → the edge's process → stream tidegate.drops

RabbitMQ dead-letters what it drops (`plane.drops` says so, by policy), and nothing here runs while it drops nothing.
It is the process that writes to the stream, because RabbitMQ 3.10 can't dead-letter into one, and because only what a
process has read can be counted by subscription. While the process is away, drops wait in the queue, as bounded as the
stream.
"""
