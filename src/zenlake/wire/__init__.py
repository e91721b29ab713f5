"""Bytes to messages and back: the whole Zenoh 1.x protocol (version byte 0x09).

No I/O, no clock, no state. One file per message: its class with the byte diagram, its reader, its
writer, its table of extensions. `batch.py` walks messages, `framing.py` cuts batches out of a
stream, `scan.py` is the compiled second reader that fills columns, `emit.py` writes from columns.
"""
