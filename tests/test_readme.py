"""The blocks of the README run and show what it says."""

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()
TOOLS = README.parent / "docs" / "tools.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.kernel
def test_the_python_examples() -> None:
    examples = "\n".join(blocks("python"))
    parsed = doctest.DocTestParser().get_doctest(examples, {}, "README", str(README), 0)
    assert len(parsed.examples) > 8
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(parsed)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.process
def test_the_console_examples() -> None:
    command = shlex.quote(str(Path(sys.executable).parent / "zenlake"))
    found = re.findall(r"```console\n(.*?)```", TOOLS.read_text(), re.DOTALL)
    assert found
    for block in found:
        line, _, want = block.partition("\n")
        script = line.removeprefix("$ ").replace("zenlake", command)
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        assert [row.rstrip() for row in done.stdout.splitlines()] == want.splitlines()


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if not name.startswith("https://"):
            assert (README.parent / name).exists(), name
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (README.parent / name).exists(), name
