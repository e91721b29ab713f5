"""What starting costs: imports and the first use of the kernel from its cache."""

import subprocess
import sys
from statistics import median

from bench.figures import Figure, Figures

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


def _median(script: str) -> float:
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)  # fills caches
    return median(
        float(
            subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(ROUNDS)
    )


def figures() -> Figures:
    yield Figure("import zenlake", _median(IMPORT), "s", at_most=0.15)
    yield Figure(
        "first scan from the cache, beyond import numpy", _median(FIRST_SCAN), "s", at_most=1.0
    )
