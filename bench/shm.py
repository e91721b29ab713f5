"""Puts through shared memory beside eclipse-zenoh, in one run and in turns.

Both sessions run in processes of their own, on one host. `put`: the measured library sends to a
callback of eclipse-zenoh; `callback`: eclipse-zenoh sends to it; `put to callback`: it does both.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.api import LIBRARIES, OURS, SECONDS, THEIRS, compare, wait_for_all
from bench.figures import Figure, Figures, medians
from bench.process import Process, process

SIZES = (4096, 16_384, 65_536, 1 << 20, 4 << 20)
AIM = 0.7
COPIES = "copies"  # Callbacks of zenlake whose payloads are copied when they arrive.

FLOWS: dict[str, Callable[[str], tuple[str, str]]] = {
    "put": lambda library: (library, LIBRARIES[THEIRS]),
    "callback": lambda library: (LIBRARIES[THEIRS], library),
    "put to callback": lambda library: (library, library),
}
"Sending and receiving library, for the library that is measured."


def figures() -> Figures:
    with ExitStack() as stack:
        flows = {
            flow: {
                name: stack.enter_context(pair(*ends(library)))
                for name, library in LIBRARIES.items()
            }
            for flow, ends in FLOWS.items()
        }
        copied = stack.enter_context(pair(*FLOWS["callback"](LIBRARIES[OURS]), copies=True))
        for size in SIZES:
            for flow, sides in flows.items():
                jobs = {name: partial(rate, *side, size) for name, side in sides.items()}
                if flow == "callback":
                    jobs[COPIES] = partial(rate, *copied, size)
                rates = medians(jobs)
                copies = rates.pop(COPIES, None)
                yield from compare(f"shared memory: {flow}, {size} B", rates, "messages/s", AIM)
                if copies is not None:
                    name = f"shared memory: callback of copies, {size} B, beside {THEIRS}"
                    yield Figure(name, copies / rates[THEIRS], "x")


@contextmanager
def pair(sends: str, receives: str, *, copies: bool = False) -> Iterator[tuple[Process, Process]]:
    """Open a session that sends, and one with a callback that counts."""
    with (
        process("session", library=receives, shm=True, copies=copies) as receiver,
        process("session", library=sends, connect=receiver.facts["endpoint"], shm=True) as sender,
    ):
        receiver.ask("receive", into="callback")
        yield sender, receiver


def rate(sender: Process, receiver: Process, size: int) -> float:
    """Return messages per second, from the first put to the last callback."""
    before = receiver.count
    found = sender.ask("put", size=size, seconds=SECONDS, congestion_control="BLOCK")
    arrived = wait_for_all(receiver, before + found["sent"])
    return float(found["sent"] / (arrived - found["start"]))
