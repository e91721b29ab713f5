"""Zenoh in Python, from the wire to the lakehouse.

This module is what `import zenlake` costs: it loads nothing heavy. NumPy, Numba, Arrow and Spark
load when something that needs them is first used.
"""

__version__ = "0.1.0"
