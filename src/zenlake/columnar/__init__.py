"""Samples as Arrow columns: the one schema, from the scan's rows and back to the wire.

`schema.py` says what a sample is, `read.py` builds record batches from rows, `write.py` turns a
record batch into what `wire/emit.py` sends. No Python work for each sample, either way.
"""
