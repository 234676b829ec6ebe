"""Rate mode: the agents of production over flows instead of messages, for systems of a thousand edges.

| module | what |
| --- | --- |
| `uplink` | a FIFO uplink as a fluid: what waits, what drains, what comes too late |
| `sources` | who publishes what at which rate, and how long it takes to where |
| `planes` | what the RabbitMQ of a head and of an edge would do, and what their samples would show |
| `clients` | subscribers: one request to join, and their part of a migration |
| `brokers` | processes with their agents |
| `control`, `dataplane` | control messages, and what agents order on the data plane |
| `sampling` | when brokers are sampled, and when they need not be |
| `world` | all of it together |
| `scale` | how agent time, control messages and settling grow with the number of edges |
"""
