"""Transport sessions without I/O: bytes and time go in; bytes, messages and deadlines come out.

Knows the rules of a session from handshake to CLOSE. Does not know sockets, threads, clocks or
randomness: link/, runtime/ and sim/ pass them in.
"""
