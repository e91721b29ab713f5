"""Zenoh queries about the past, answered from tables and from the end of the log."""
