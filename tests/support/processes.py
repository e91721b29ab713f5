"""Start modules and functions of the tests in processes of their own.

The environment lets them import `tests`; `obey_sigint` makes SIGINT reach them.
"""

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""


def python_environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the checkout on PYTHONPATH, and with `more`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | more


def module_command(module: str, *args: str) -> list[str]:
    """Return the command that runs `module` as a script; needs `python_environment`."""
    return [sys.executable, "-m", module, *args]


def call_command(module: str, function: str, *args: object) -> list[str]:
    """Return the command that calls a function of `module`; needs `python_environment`."""
    given = ", ".join(map(repr, args))
    return [sys.executable, "-c", f"from {module} import {function}; {function}({given})"]


def obey_sigint() -> None:
    """Give SIGINT its usual effect in this process and in its children.

    `nohup`, a shell's background job and some CI runners start a process with SIGINT ignored.
    Children inherit that, and Python then leaves the signal alone. A signal that has a handler is
    back at its default in a new program, so setting Python's own handler here is enough for all.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
