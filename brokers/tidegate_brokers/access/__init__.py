"""Who may do what: an account of RabbitMQ for every part, with the least rights that work.

`layout.py` reads which brokers and clients there are and what they may publish and subscribe. `roles.py` says which
rights that takes on RabbitMQ, `expressions.py` makes those on keys of topic patterns, `definitions.py` writes them in
RabbitMQ's own form, and `preparing.py` makes passwords and files of it all: RabbitMQ reads the definitions when it
starts, or an operator imports them. `applying.py` makes a running RabbitMQ agree with a changed layout, as the warden.
Brokers read rules with `rules_file.py`, and `admission.py` says which control message they take from whom.
"""
