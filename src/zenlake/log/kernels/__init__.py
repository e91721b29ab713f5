"""Compiled kernels that read blocks of the log."""
