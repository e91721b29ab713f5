"""What drives the core: one I/O thread a node, its links, timers and sessions.

Knows threads, clocks and chance. Does not know the protocol (transport/) or sockets (link/).
"""
