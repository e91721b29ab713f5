"""The form of a figure, and how jobs are measured: in turns, after a warm-up, by the median."""

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

ROUNDS = 15  # Measured turns of a short job.
TURNS = 3  # Measured turns of a job that involves other processes.

T = TypeVar("T")


class Figure(NamedTuple):
    """One measured value, and the aim that it should reach."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def line(self) -> str:
        """Return `name value unit`, then the aim if there is one and whether it was met."""
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


def run_in_turns(
    jobs: Mapping[str, Callable[[], T]], turns: int | None = None
) -> dict[str, list[T]]:
    """Run the jobs in turns and return the results of each, over `turns` turns (else TURNS).

    One more turn comes first and is not counted: it compiles and fills caches. By taking turns, all
    jobs suffer alike from a noisy minute.
    """
    results: dict[str, list[T]] = {name: [] for name in jobs}
    for turn in range((TURNS if turns is None else turns) + 1):
        for name, job in jobs.items():
            result = job()
            if turn:
                results[name].append(result)
    return results


def medians(jobs: Mapping[str, Callable[[], float]], turns: int | None = None) -> dict[str, float]:
    """Return the median of the values that each job measures, over `turns` turns (else TURNS)."""
    return {name: median(values) for name, values in run_in_turns(jobs, turns).items()}


def median_seconds(
    jobs: Mapping[str, Callable[[], object]], rounds: int | None = None
) -> dict[str, float]:
    """Return the median duration of each job, over `rounds` turns (else ROUNDS)."""

    def timed(job: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            before = time.perf_counter()
            job()
            return time.perf_counter() - before

        return run

    timed_jobs = {name: timed(job) for name, job in jobs.items()}
    return medians(timed_jobs, ROUNDS if rounds is None else rounds)
