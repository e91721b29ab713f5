"""Compiled kernels that gather sample columns."""
