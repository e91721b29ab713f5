"""Type checkers run on programs: mypy --strict and pyright in strict mode, and what they say.

A program is text that imports a Zenoh library as `zenoh`. `check` gives, by checker and program,
the types that `reveal_type` shows and the lines with errors.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 140  # Upper bound on the time of one checker.
PYRIGHT_SETTINGS = {"typeCheckingMode": "strict", "pythonPlatform": "Linux"}

# Complaints that a name has no type, or an incomplete one.
UNTYPED = re.compile(r" \[(no-untyped-call|reportUnknown\w+)\]$")
MYPY_REVEALS = re.compile(r'^Revealed type is "(.*)"$', re.DOTALL)
PYRIGHT_REVEALS = re.compile(r'^Type of ".*" is "(.*)"$', re.DOTALL)


@dataclass
class Findings:
    """Findings of one checker in one program."""

    revealed: dict[int, str] = field(default_factory=dict)
    "Types that `reveal_type` shows, by line."
    errors: dict[int, list[str]] = field(default_factory=dict)
    "Error texts by line, each with its rule in brackets at the end."

    def add(
        self, line: int, severity: str, message: str, rule: str, reveals: re.Pattern[str]
    ) -> None:
        if severity == "error":
            self.errors.setdefault(line, []).append(f"{message} [{rule}]")
        elif shown := reveals.match(message):
            self.revealed[line] = shown[1]

    def refuses(self, line: int) -> bool:
        """Say whether the line has a wrong type; one that has no type does not count."""
        return any(not UNTYPED.search(error) for error in self.errors.get(line, ()))


def bare(shown: str) -> str:
    """Return a type as a checker shows it, without the modules of its names."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", shown)


def check(programs: dict[str, str], folder: Path) -> dict[str, dict[str, Findings]]:
    """Write the programs, by name, into `folder`; return the findings by checker and program."""
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT_SETTINGS))
    return {
        "mypy": _run_mypy(list(programs), folder),
        "pyright": _run_pyright(list(programs), folder),
    }


def _run_mypy(names: list[str], folder: Path) -> dict[str, Findings]:
    options = ("--strict", "--output=json", "--config-file=", "--cache-dir", "mypy_cache")
    files = [f"{name}.py" for name in names]
    found = {name: Findings() for name in names}
    for line in _run([sys.executable, "-m", "mypy", *options, *files], folder).splitlines():
        report = json.loads(line)
        found[Path(report["file"]).stem].add(
            report["line"], report["severity"], report["message"], report["code"], MYPY_REVEALS
        )
    return found


def _run_pyright(names: list[str], folder: Path) -> dict[str, Findings]:
    options = ("--outputjson", "--pythonpath", sys.executable, "--project", "pyrightconfig.json")
    output = _run([sys.executable, "-m", "basedpyright", *options], folder)
    found = {name: Findings() for name in names}
    reported: list[dict[str, Any]] = json.loads(output)["generalDiagnostics"]
    for report in reported:
        line = report["range"]["start"]["line"] + 1
        found[Path(report["file"]).stem].add(
            line, report["severity"], report["message"], report.get("rule", ""), PYRIGHT_REVEALS
        )
    return found


def _run(command: list[str], folder: Path) -> str:
    """Run a checker, which ends with 0, or with 1 if it has found errors."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode in (0, 1), f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
