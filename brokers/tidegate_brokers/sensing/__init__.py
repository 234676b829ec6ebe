"""The eyes of a broker: what RabbitMQ counts, made into the samples that agents judge by.

    source      one HTTP request per period, to RabbitMQ's Prometheus endpoint
    exposition  its text, read into counters per channel and queue
    queues      from counters to rates and to what waits, queue by queue
    trips       how long subscribers, heads and neighbours are away, and how their clocks differ
    edges       the sample of an edge
    heads       the sample of a head, with what publishers report
    gauges      what was sensed, and what sensing costs, as metrics of our own
    sensor      the loop: ask, read, sample, hand on

Everything but `source`, `gauges` and `sensor` is pure: time is an argument.
"""
