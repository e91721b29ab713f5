"""The time to start: imports, and the first use of the kernel from its cache."""

import subprocess
import sys

from bench.figures import Figure, Figures, medians

ROUNDS = 7

FIRST_SCAN = """
import time
import numpy
start = time.perf_counter()
from zenlake.wire.scan import scan
scan(bytes.fromhex("07002505") + bytes.fromhex("5d0201 00 04"))
print(time.perf_counter() - start)
"""
IMPORT = """
import time
start = time.perf_counter()
import zenlake
print(time.perf_counter() - start)
"""


def _seconds(script: str) -> float:
    """Run a script that prints a duration, in a new process."""
    command = [sys.executable, "-c", script]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def figures() -> Figures:
    took = medians(
        {"import": lambda: _seconds(IMPORT), "scan": lambda: _seconds(FIRST_SCAN)}, ROUNDS
    )
    yield Figure("import zenlake", took["import"], "s", at_most=0.15)
    yield Figure("first scan from the cache, beyond import numpy", took["scan"], "s", at_most=1.0)
