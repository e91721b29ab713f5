"""Sessions without I/O: bytes and the time go in; bytes, messages and the next deadline come out.

Knows the rules of a link's life. Does not know sockets, threads, clocks or chance: those who do
(link/, runtime/, sim/) pass them in.
"""
