"""The report: one page that shows what happened, from a lake, for a person who would rather look than read.

    lake ─ gather (Spark) ─► material (plain, bounded) ─ summary and charts ─► page (one HTML file, nothing else needed)

Only `gather` knows Spark. Material is small whatever the size of the lake: time is cut into windows, and of brokers,
queues, topics, sessions and moves those that matter most are kept, with the number of those left out. Charts are SVG
that is written by hand, so that the page fetches nothing, needs no script and is sharp on a phone.
"""
