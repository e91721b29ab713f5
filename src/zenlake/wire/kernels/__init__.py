"""Compiled kernels that read and write wire messages in bulk."""
