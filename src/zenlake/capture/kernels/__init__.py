"""Compiled kernels that read packet captures."""
