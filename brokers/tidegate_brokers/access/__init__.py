"""Who may do what: an account of RabbitMQ for every part, with the least rights that work.

`roles.py` says which rights, `definitions.py` writes them in RabbitMQ's own form, `layout.py` reads which brokers and
clients there are, and `preparing.py` makes passwords and files of it. Nothing here opens a connection: RabbitMQ reads
the definitions when it starts, or an operator imports them.
"""
