"""A network of its own for a test: processes in network namespaces, joined by a bridge.

Needs no rights: all is inside a user namespace, and ends with the process that holds it.
"""

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

import pytest

from tests.support.reference_peer import ReferenceProcess

TOOLS = ("ip", "nsenter", "unshare")
BRIDGE = """
set -e
ip link add bridge type bridge mcast_snooping 0
ip link set bridge up
echo ready
exec cat
"""
COMMAND_SECONDS = 60.0  # Longest time for one command of ip.
INTERFACE = "eth0"
"""Name of the interface of every process."""


def need_tools(purpose: str, *tools: str) -> None:
    """Skip the test if a tool is missing; CI has all of them."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{purpose} need {' and '.join(missing)}")


class BridgedNetwork:
    """A bridge, and processes with sessions that see each other through it alone."""

    def __init__(self) -> None:
        need_tools("network namespaces", *TOOLS)
        self._holder = subprocess.Popen(
            ["unshare", "-rn", "sh", "-c", BRIDGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes: list[ReferenceProcess] = []
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.__exit__(None, None, None)
        self._holder.communicate(timeout=COMMAND_SECONDS)  # Closing its input ends it.

    def process(self, api: str) -> ReferenceProcess:
        """Start a process for sessions of the module `api`, in a namespace of its own."""
        number = len(self._processes) + 1
        process = ReferenceProcess(api, (*self._inside(), "unshare", "-n"))
        self._processes.append(process)
        cable = f"cable{number}"
        self._run(
            f"ip link add {cable} type veth peer name {INTERFACE} netns {process.pid}",
            f"ip link set {cable} master bridge up",
        )
        self._run(
            "ip link set lo up",
            f"ip addr add 10.77.0.{number}/24 dev {INTERFACE}",
            f"ip -6 addr add fd77::{number}/64 dev {INTERFACE} nodad",
            f"ip link set {INTERFACE} up",
            # The kernel reports a cable some time after both of its ends are up.
            f"until ip link show {INTERFACE} | grep -q 'state UP'; do sleep 0.01; done",
            where=process.pid,
        )
        return process

    def move(self, process: ReferenceProcess, old: int, new: int) -> None:
        """Give the process another IPv4 address instead of its own, by their last bytes."""
        self._run(
            f"ip addr del 10.77.0.{old}/24 dev {INTERFACE}",
            f"ip addr add 10.77.0.{new}/24 dev {INTERFACE}",
            where=process.pid,
        )

    def _inside(self, where: int | None = None) -> tuple[str, ...]:
        """Return a command that runs another one in the bridge's namespace, or a process's."""
        user = ("-U", "--preserve-credentials", f"--net=/proc/{where or self._holder.pid}/ns/net")
        return ("nsenter", "-t", str(self._holder.pid), *user)

    def _run(self, *commands: str, where: int | None = None) -> None:
        script = "set -e\n" + "\n".join(commands)
        subprocess.run(
            [*self._inside(where), "sh", "-c", script], check=True, timeout=COMMAND_SECONDS
        )
