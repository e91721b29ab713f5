"""The measured side of a benchmark with several processes: `python -m MODULE ROLE ARGUMENTS`.

Prints facts as JSON, one object per line, and runs the commands that `bench.process` sends. Opens
sessions of zenlake or eclipse-zenoh alike.
"""

import cProfile
import json
import os
import pstats
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

PROFILE = "ZENLAKE_BENCH_PROFILE"  # Environment variable: the role or library that profiles itself.
PROFILE_LINES = 40
PATIENCE = 30.0  # Seconds that a condition may take.
PORT_ATTEMPTS = 5

Commands = dict[str, Callable[..., None]]


def run_role(roles: Mapping[str, Callable[..., None]]) -> None:
    """Run the role that the command line names, profiled if the environment asks for it."""
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    threading.current_thread().name = f"bench {role}"
    wanted = os.environ.get(PROFILE)
    with profiled() if wanted in (role, arguments.get("library")) and wanted else nullcontext():
        roles[role](**arguments)


def report(**facts: Any) -> None:
    """Print facts as one line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def serve(commands: Commands) -> None:
    """Run commands until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        commands[request.pop("do")](**request)


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait until `condition` holds. TimeoutError: it did not within `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:g} s for {what}")
        time.sleep(0.01)


def wait_for_subscriber(publisher: Any) -> None:
    """Wait until a subscriber matches `publisher`."""
    wait_until(lambda: publisher.matching_status.matching, "a subscriber")


# ---- sessions of either library


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def session_config(
    zenoh: Any, mode: str, *, connect: str = "", listen: str = "", shm: bool = False
) -> Any:
    """Return a configuration of `zenoh` without multicast; with `shm`, with shared memory."""
    config = zenoh.Config()
    for key, value in {
        "mode": mode,
        "listen/endpoints": [listen] if listen else [],
        "connect/endpoints": [connect] if connect else [],
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": shm,
    }.items():
        config.insert_json5(key, json.dumps(value))
    return config


def open_session(zenoh: Any, mode: str, connect: str, *, shm: bool = False) -> Any:
    """Open a session of `zenoh` that connects to an endpoint."""
    return zenoh.open(session_config(zenoh, mode, connect=connect, shm=shm))


def open_listening(zenoh: Any, mode: str, *, shm: bool = False) -> tuple[str, Any]:
    """Open a session of `zenoh` on a free port; return its endpoint and the session."""
    for attempt in range(PORT_ATTEMPTS):
        endpoint = f"tcp/127.0.0.1:{free_port()}"
        try:
            return endpoint, zenoh.open(session_config(zenoh, mode, listen=endpoint, shm=shm))
        except zenoh.ZError:  # Another process has taken the port meanwhile.
            if attempt == PORT_ATTEMPTS - 1:
                raise
    raise AssertionError


# ---- the process itself


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def profiled() -> Iterator[None]:
    """Profile this thread and all that it starts, and print the sum to standard error."""
    profiles = [cProfile.Profile()]

    def begin(frame: object, event: str, argument: object) -> None:
        profile = cProfile.Profile()
        try:
            profile.enable()  # Replaces this function for the thread.
        except ValueError:  # Newer Pythons have one profile for all threads.
            return
        profiles.append(profile)

    threading.setprofile(begin)
    profiles[0].enable()
    try:
        yield
    finally:
        profiles[0].disable()
        threading.setprofile(None)
        stats = pstats.Stats(*profiles, stream=sys.stderr)
        stats.sort_stats("tottime").print_stats(PROFILE_LINES)
