"""The runtime: one I/O thread per node, with its links, timers and sessions.

Knows threads, clocks and random numbers. The protocol is in transport/, sockets are in link/.
"""
