"""Run a tier of the tests: `python -m tests.tiers unit`, `test` or `campaign`.

A tier has lanes that run side by side; a lane is a list of steps. The output of the first lane is
shown while it runs, the output of the others after it; a summary ends the run.
"""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
REPORTS = ROOT / ".pytest_cache" / "tiers"
"""Where each step leaves its output and pytest's report."""

UNIT = "not spark and not process and not interop and not slow and not campaign"
TEST = "not campaign"

# The lanes of a tier take about as long. Tests of nodes and of commands wait most of the time, for
# other nodes and processes, so that three lanes fit two processors; the last lane computes. It
# compiles the kernels while the first checks types and the second runs tests that need few of them.
NODES = [f"tests/{name}" for name in ("keyexpr", "routing", "runtime", "router", "interop")]
COMMANDS = [
    f"tests/{name}"
    for name in ("api", "aio", "cli", "demo", "examples", "link", "sim", "transport")
]
WAITING = [*NODES, *COMMANDS]
KERNELS_FIRST = [f"tests/{name}" for name in ("columnar", "wire", "capture")]
QUICK = [
    f"tests/{name}"
    for name in ("wire", "transport", "api", "aio", "cli", "sim", "routing", "keyexpr")
]
"""The first lane of `make unit`. Folders of tests that wait and are not here all talk to nodes."""
COMPUTING = [
    *KERNELS_FIRST,
    *(f"tests/{name}" for name in ("log", "lake", "spark")),
]


@dataclass
class Step:
    """One command of a lane."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    status: int | None = None

    @property
    def output(self) -> Path:
        return REPORTS / f"{self.name}.log"

    @property
    def report(self) -> Path:
        return REPORTS / f"{self.name}.xml"

    def run(self, shown: bool) -> None:
        """Run the command; print what it says if `shown`, keep it in `output` if not."""
        began = time.monotonic()
        self.report.unlink(missing_ok=True)
        environment = os.environ | self.environment
        if shown:
            done = subprocess.run(self.command, cwd=ROOT, env=environment, check=False)
        else:
            with self.output.open("w") as output:
                done = subprocess.run(
                    self.command,
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
        self.seconds, self.status = time.monotonic() - began, done.returncode

    def summary(self) -> str:
        """Return one line: name, result, time, and what pytest counted."""
        result = "ok" if self.status == 0 else f"FAILED ({self.status})"
        return f"{self.name:22} {result:12} {self.seconds:6.0f} s  {self._counts()}".rstrip()

    def _suite(self) -> ElementTree.Element | None:
        if not self.report.exists():
            return None
        return ElementTree.parse(self.report).getroot().find("testsuite")

    def _counts(self) -> str:
        suite = self._suite()
        if suite is None:
            return ""
        found = {name: int(suite.get(name, 0)) for name in ("failures", "errors", "skipped")}
        tests = int(suite.get("tests", 0)) - found["skipped"]
        return f"{tests} tests" + "".join(f", {n} {name}" for name, n in found.items() if n)

    def skipped(self) -> list[str]:
        """Return the skipped tests with their reasons."""
        suite = self._suite()
        if suite is None:
            return []
        return [
            f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}"
            for case in suite.iter("testcase")
            for skip in case.iter("skipped")
        ]


def checks() -> list[Step]:
    return [
        Step("format", [f"{BIN}/ruff", "format", "--quiet", "--check", "."]),
        Step("lint", [f"{BIN}/ruff", "check", "--quiet", "."]),
        Step("types", [f"{BIN}/mypy", "--no-error-summary"]),
    ]


def tests(name: str, *args: str, **environment: str) -> Step:
    cache = f"cache_dir={REPORTS.parent / name}"
    report = f"--junit-xml={REPORTS / name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-o", cache, report, *args]
    return Step(name, command, environment)


def rest() -> list[str]:
    """Return what no list names: the tests at the top, and folders that are new."""
    named = {*WAITING, *COMPUTING}
    found = [*(ROOT / "tests").glob("test_*.py"), *(ROOT / "tests").glob("*/test_*.py")]
    parts = {path.relative_to(ROOT).parts[:2] for path in found}
    return sorted({"/".join(part) for part in parts} - named)


def lanes(tier: str) -> tuple[list[Step], ...]:
    computing = [*COMPUTING, *rest()]
    match tier:
        case "unit":
            return (
                [tests("unit-first", "-m", UNIT, *QUICK)],
                [
                    tests(
                        "unit-second",
                        "-m",
                        UNIT,
                        *(path for path in computing if path not in QUICK),
                    )
                ],
            )
        case "test":
            return (
                [*checks(), tests("commands", "-m", TEST, *COMMANDS)],
                [tests("nodes", "-m", TEST, *NODES)],
                [tests("computing", "-m", TEST, *computing)],
            )
        case "campaign":
            plain = {"NUMBA_DISABLE_JIT": "1"}
            bounds = {
                "NUMBA_BOUNDSCHECK": "1",
                "NUMBA_CACHE_DIR": f"{ROOT / '.venv'}/numba-boundscheck",
            }
            return (
                [tests("campaign", "-m", "campaign")],
                [
                    tests("kernels-boundscheck", "-m", "kernel", **bounds),
                    tests("kernels-plain-python", "-m", "kernel", **plain),
                    tests("malformed-full-size", "tests/wire/test_malformed.py", ZENLAKE_FULL="1"),
                ],
            )
        case _:
            raise SystemExit(f"no tier {tier!r}: unit, test or campaign")


def run_lane(steps: list[Step], shown: bool) -> None:
    for step in steps:
        step.run(shown)


def run(tier: str) -> int:
    """Run the tier; return 0 if every step went well."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    shown, *beside = lanes(tier)
    threads = [threading.Thread(target=run_lane, args=(steps, False)) for steps in beside]
    for thread in threads:
        thread.start()
    run_lane(shown, True)
    for thread in threads:
        thread.join()
    kept = [step for steps in beside for step in steps]
    for step in kept:
        sys.stdout.write(f"\n---- {step.name}\n{step.output.read_text(errors='replace')}")
    steps = [*shown, *kept]
    sys.stdout.write(f"\n==== {tier}: {time.monotonic() - began:.0f} s\n")
    for step in steps:
        sys.stdout.write(f"{step.summary()}\n")
    skipped = [line for step in steps for line in step.skipped()]
    if skipped:
        sys.stdout.write("skipped, so not proven here:\n")
        for line in skipped:
            sys.stdout.write(f"  {line}\n")
    return 0 if all(step.status == 0 for step in steps) else 1


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:] or ["test"]))
