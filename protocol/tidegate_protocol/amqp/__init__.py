"""AMQP 0-9-1 as bytes: the frames, methods and content properties that our processes read and write themselves.

AMQP libraries do most of the talking. What comes by the thousand (publications and deliveries) is encoded here, because
a library makes several objects of each; and content properties are decoded here, because any client may choose them and
the libraries give up the connection on some. Everything is a function of its arguments, but for readers that hold one
unfinished frame. Nothing here opens a connection.

| module | what |
| --- | --- |
| `frames` | frames, and cutting a stream into them |
| `methods` | the few methods that are read or written without a library |
| `content` | content headers: decoding properties that any client may have chosen |
| `publications` | publications in the public message form |
| `rewriting` | a stream reader in front of a library, which hands out frames that the library can read |
"""
