"""How a figure is measured and printed."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def line(self) -> str:
        """`name value unit`, then the aim if there is one and whether it was met."""
        text = f"{self.name:<44} {self.value:>12.4g} {self.unit}"
        if self.at_least is not None:
            text += f"   (aim: at least {self.at_least:g}{self._verdict()})"
        if self.at_most is not None:
            text += f"   (aim: at most {self.at_most:g}{self._verdict()})"
        return text

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def _verdict(self) -> str:
        return "" if self.met else ", MISSED"


Figures = Iterator[Figure]


ROUNDS = 15


def seconds(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each piece of work, run in turns so that a noisy minute hits all."""
    for job in work.values():
        job()  # compiles, fills caches
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, job in work.items():
            before = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - before)
    return {name: median(taken) for name, taken in times.items()}
