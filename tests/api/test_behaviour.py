"""Equal calls of `eclipse-zenoh` and of this package give equal answers.

`tests/support/api_behaviour.py` does them, in a process for each, and tells what users see; all
must be the same.
"""

import json
import subprocess
from typing import Any

import pytest

from tests.support.processes import module_command, python_environment

SECONDS = 200.0

pytestmark = pytest.mark.interop


def facts(module: str) -> dict[str, Any]:
    done = subprocess.run(
        module_command("tests.support.api_behaviour", module),
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_doings_have_the_same_answers() -> None:
    theirs, ours = facts("zenoh"), facts("zenlake")
    assert len(theirs) > 140
    assert list(ours) == list(theirs)
    assert {name: (theirs[name], ours[name]) for name in theirs if ours[name] != theirs[name]} == {}
