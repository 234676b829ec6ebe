"""Control messages of load management: load reports, sessions, migrations, publishers' moves, containment.

The course of a session (seed 000 §IV.D), and of each migration in it:

    edge   → head    balance-request      the source is overloaded; these candidates it knows to be LOW
    head   → edges   load-request         to each candidate; answered with load-reply
    head   → edge    balance-candidates   the answer to the request, promises of running migrations included
    edge   → head    balance-plan         who is to go where; answered with balance-accepted
    head   → edges   output-prepare       the target makes and binds the new queue (and its marker key)
    head   → edge    marker-bind          the source binds the marker key to the old queue
    head   → client  migrate-order        attach to the new queue and hold; answered with migration-report. The markers
                                          are published at the same time
    client → head    migration-report     attached; answered with migration-ack
    client → head    migration-report     moved or stayed; answered with migration-ack
    head   → edge    output-remove        the old queue, if the client moved; the new one, if it stayed
    head   → edges   session-notice       ended

Every request may be repeated and gets the same answer. A sender that hears nothing gives up by a time-out of its own.
The client alone decides whether it has moved.
"""
