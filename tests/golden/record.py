"""Record the golden vectors from real nodes: `python -m tests.golden.record [name ...]`.

Run by hand, or as `make golden`; the tests only read what it wrote. Without names it records
every scenario of scenarios.py. All traffic stays on the loopback interface.
"""

import faulthandler
import sys
import time

from tests.golden.nodes import A_ID, B_ID, Stage
from tests.golden.scenarios import SCENARIOS
from tests.golden.vectors import VECTORS, Vector, dump

SCENARIO_WITHIN = 60
"""Seconds after which a scenario that hangs ends the program with its traceback."""


def record_live(name: str) -> Vector:
    """Record one scenario now, and write nothing."""
    run = SCENARIOS[name]
    stage = Stage(name, (run.__doc__ or name).splitlines()[0])
    with stage:
        run(stage)
        stage.settle()
    return stage.vector(_names(stage))


def _names(stage: Stage) -> dict[str, str]:
    """Who the senders of a multicast group are: A or B by the id in their datagrams."""
    names: dict[str, str] = {}
    ids = {"A": bytes.fromhex(A_ID)[::-1], "B": bytes.fromhex(B_ID)[::-1]}
    for sender, batch in stage.tape.batches():
        for name, zid in ids.items():
            if ":" in sender and zid in batch:
                names[sender] = name
        if ":" in sender and batch[:2] == b"\x01\x09":
            names[sender] = "scout"
    return names


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        sys.stderr.write(f"no such scenario: {', '.join(unknown)}\n")
        return 2
    VECTORS.mkdir(exist_ok=True)
    for name in chosen or SCENARIOS:
        start = time.monotonic()
        faulthandler.dump_traceback_later(SCENARIO_WITHIN, exit=True)
        vector = record_live(name)
        faulthandler.cancel_dump_traceback_later()
        text = dump(vector)
        (VECTORS / f"{name}.hex").write_text(text, encoding="ascii")
        seconds = time.monotonic() - start
        count = len(vector.batches)
        sys.stdout.write(f"{name:24} {count:4} batches {len(text):7} bytes {seconds:5.1f} s\n")
        sys.stdout.flush()
    if not chosen:
        for path in VECTORS.glob("*.hex"):
            if path.stem not in SCENARIOS:
                path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
