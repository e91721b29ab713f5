"""Compiled parts of the lake. Numba is imported here and in no other room of the package."""
