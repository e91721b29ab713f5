"""Sessions, commands and readers in a Python that lacks what only Linux, or only POSIX, has."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.proxy import free_port
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.write.writer import Writer

CHILD_SECONDS = 200.0  # A first run may compile kernels.

# Other packages keep `fcntl` and `resource`: only imports by zenlake fail.
HIDDEN = """
import asyncio, builtins, errno, os, select, selectors, signal, socket, subprocess, sys, tempfile

plain_import = builtins.__import__

def hiding_import(name, globals=None, *rest, **more):
    if name in ("fcntl", "resource") and (globals or {}).get("__name__", "").startswith("zenlake"):
        raise ImportError(f"{name} is hidden")
    return plain_import(name, globals, *rest, **more)

builtins.__import__ = hiding_import
NOT_EVERYWHERE = {
    select: ["epoll"],
    selectors: ["EpollSelector"],
    os: ["eventfd", "eventfd_read", "eventfd_write", "memfd_create", "fdatasync", "pwritev",
         "sendfile", "sched_getaffinity", "posix_fallocate", "copy_file_range", "pread", "pwrite",
         "O_CLOEXEC", "fork", "register_at_fork", "getuid", "killpg"],
    signal: ["SIGHUP", "SIGUSR1", "SIGPIPE", "pthread_sigmask", "setitimer"],
    socket: ["AF_UNIX", "AF_VSOCK", "AF_PACKET", "AF_NETLINK", "SO_BINDTODEVICE",
             "CMSG_SPACE"],
}
for module, names in NOT_EVERYWHERE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
plain_connect = socket.socket.connect_ex

def windows_connect(self, at):
    code = plain_connect(self, at)
    return errno.WSAEWOULDBLOCK if code == errno.EINPROGRESS else code

errno.WSAEWOULDBLOCK = 10035
socket.socket.connect_ex = windows_connect
import zenlake.link.sockets
zenlake.link.sockets.IS_LINUX = False
"""

MODULES = """
import importlib
for name in ("zenlake", "zenlake.cli", "zenlake.log", "zenlake.capture", "zenlake.router",
             "zenlake.aio", "zenlake.ext", "zenlake.capture.reading", "zenlake.link.udp",
             "zenlake.link.tls", "zenlake.link.unix", "zenlake.link.ws", "zenlake.link.multicast",
             "zenlake.log.read.reader", "zenlake.log.write.recorder"):
    importlib.import_module(name)
"""

SESSIONS = """
import time
import zenlake
import zenoh

def configure(library, **keys):
    made = library.Config()
    made.insert_json5("scouting/multicast/enabled", "false")
    made.insert_json5("listen/endpoints", "[]")
    for key, value in keys.items():
        made.insert_json5(key, value)
    return made

at = f'["tcp/127.0.0.1:{sys.argv[1]}"]'
node = zenoh.open(configure(zenoh, mode='"router"', **{"listen/endpoints": at}))
session = zenlake.open(configure(zenlake, mode='"client"', **{"connect/endpoints": at}))
of_node = node.declare_subscriber("to/node")
of_session = session.declare_subscriber("to/session")
publishers = node.declare_publisher("to/session"), session.declare_publisher("to/node")
end = time.monotonic() + 60
while not all(publisher.matching_status.matching for publisher in publishers):
    assert time.monotonic() < end, "no match"
    time.sleep(0.01)
for publisher in publishers:
    publisher.put("x" * 300_000)
print("node got", len(of_node.recv().payload.to_bytes()))
print("session got", len(of_session.recv().payload))
print("poller", type(session._core.node.reactor._poller).__name__)
for setting, endpoint in (
    ("connect/endpoints", "tcp/127.0.0.1:1#iface=lo"),
    ("listen/endpoints", "udp/127.0.0.1:0"),
):
    keys = {"mode": '"client"' if setting.startswith("connect") else '"peer"'}
    try:
        zenlake.open(configure(zenlake, **keys, **{setting: f'["{endpoint}"]'}))
    except zenlake.ZError as error:
        print("refused", error)
session.close()
node.close()
"""

COMMANDS = """
from zenlake.cli import main
for arguments in (["--version"], ["router", "--help"], ["record", "--help"]):
    sys.argv = ["zenlake", *arguments]
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code)
from zenlake.cli.commands.router import _allow_many_sessions
print("limit", _allow_many_sessions())
"""

LOGS = """
import logging
from pathlib import Path
logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
from zenlake.log import Log, files
folder = Path(sys.argv[1])
log_id = files.open_log(files.FILES, folder, lambda: 1)
print("log", files.read_id(folder) == log_id)
try:
    files.Lock(files.FILES, folder / "lock")
except OSError as error:
    print("lock", error)
print("partitions", len(list(Log(folder).partitions())))
"""

WRITER = """
from zenlake.errors import ZError
from zenlake.log.write.writer import Writer
try:
    Writer(sys.argv[1])
except ZError as error:
    print(type(error).__name__, error)
print(Path(sys.argv[1]).exists())
"""

TRIM = """
from zenlake.cli import main
sys.argv = ["zenlake", "log", "trim", sys.argv[1], "--keep", "1"]
try:
    main()
except SystemExit as end:
    print("ended with", end.code)
"""

READER = """
from zenlake.log import Reader
for batch in Reader(sys.argv[1]).batches(columns=["key", "payload"]):
    print(batch.to_pylist())
"""


def _run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + code, *arguments],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_modules_import_nothing_that_only_linux_has() -> None:
    assert _run(MODULES) == ""


@pytest.mark.process
@pytest.mark.interop
def test_a_session_talks_to_eclipse_zenoh() -> None:
    node, session, poller, iface, udp = _run(SESSIONS, str(free_port())).splitlines()
    assert (node, session) == ("node got 300000", "session got 300000")
    assert poller == "poller SelectorPoller"
    assert "iface=lo works on Linux only: use bind=" in iface
    assert "listening on udp works on Linux only: listen on tcp" in udp


@pytest.mark.process
def test_commands_run() -> None:
    out = _run(COMMANDS)
    assert out.count("ended with 0") == 3
    assert "limit None" in out


@pytest.mark.process
def test_a_log_says_how_durable_it_is(tmp_path: Path) -> None:
    out = _run(LOGS, str(tmp_path / "log"))
    assert "may be lost in a power failure" in out
    assert "log True" in out
    assert "this system has no flock(): files cannot be locked" in out
    assert "partitions 0" in out


@pytest.mark.process
def test_a_writer_says_that_it_cannot_lock(tmp_path: Path) -> None:
    error, exists = _run(
        "from pathlib import Path\ndel os.O_DIRECTORY\n" + WRITER, str(tmp_path / "log")
    ).splitlines()
    assert error.startswith("LogRefused")
    assert "flock(), which this system lacks: record on Linux or macOS" in error
    assert exists == "False"


def _one_sample() -> OpenBlock:
    block = OpenBlock()
    link = block.link(SourceLink(0, 0, b""))
    assert link is not None
    assert block.key(link, 0, b"a/b", b"")
    block.add(link, True, 10**9, 1, bytes.fromhex("3d 00 03 612f62 01 05 68656c6c6f"))
    return block


READ = "[{'key': 'a/b', 'payload': b'hello'}]\n"


@pytest.mark.process
def test_a_recording_is_read(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([_one_sample()])
    assert _run(READER, str(tmp_path)) == READ


@pytest.mark.process
def test_a_recording_whose_writer_did_not_end_is_read(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([_one_sample()])
        shutil.copytree(tmp_path, tmp_path / "copy")
    assert _run(READER, str(tmp_path / "copy")) == READ


@pytest.mark.process
def test_a_recording_is_trimmed(tmp_path: Path) -> None:
    with Writer(tmp_path, rotate_bytes=1) as writer:
        for _ in range(3):
            writer.write([_one_sample()])
    out = _run("del os.O_DIRECTORY\n" + TRIM, str(tmp_path))
    assert "removed 2 segments" in out
    assert "ended with 0" in out
