"""Compiled parts of shared memory."""
