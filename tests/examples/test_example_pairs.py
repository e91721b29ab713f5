"""Every example at work with its partner, on zenlake and on eclipse-zenoh, in every combination."""

import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SOON = 60.0  # Seconds that a line may take; the first start may load caches.
OURS = "import zenlake as zenoh"
THEIRS = "import zenoh"
COMBINATIONS = [(a, b) for a in ("zenlake", "zenoh") for b in ("zenlake", "zenoh")]
END = None


class Script:
    """An example as a process, and the lines that it prints."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(folder / f"z_{name}.py"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(END)

    def line(self) -> str:
        """Return the next line it prints."""
        line = self._lines.get(timeout=SOON)
        assert line is not END, f"{self.name} ended after {self.seen}"
        self.seen.append(line)
        return line

    def expect(self, *lines: str) -> None:
        """Assert that the next lines are exactly these."""
        assert [self.line() for _ in lines] == list(lines)

    def until(self, wanted: str) -> None:
        """Read lines up to this one."""
        while self.line() != wanted:
            pass

    def end(self) -> None:
        """Assert that it ends by itself without an error."""
        rest = []
        while (line := self._lines.get(timeout=SOON)) is not END:
            rest.append(line)
        assert rest == []
        assert self._process.wait(SOON) == 0

    def interrupt(self) -> None:
        """Assert that Ctrl-C ends it without an error."""
        self._process.send_signal(signal.SIGINT)
        rest = []
        while (line := self._lines.get(timeout=SOON)) is not END:
            rest.append(line)
        assert rest[-1:] == ["stopped"], rest
        assert self._process.wait(SOON) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Stage:
    """Starter of examples: the first listens, the others connect to it."""

    def __init__(self, folders: dict[str, Path], stack: ExitStack, first: str, second: str) -> None:
        self._folders = folders
        self._stack = stack
        self._first = first
        self._second = second
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._endpoint = f"tcp/127.0.0.1:{probe.getsockname()[1]}"

    def _start(self, module: str, name: str, *options: str) -> Script:
        script = Script(self._folders[module], name, "--no-multicast-scouting", *options)
        return self._stack.enter_context(script)

    def first(self, name: str, *options: str) -> Script:
        return self._start(self._first, name, "-m", "peer", "-l", self._endpoint, *options)

    def peer(self, name: str, *options: str) -> Script:
        # A delay that a busy machine keeps to: a session that opens without its peer says so.
        settings = ("--cfg", "listen/endpoints:[]", "--cfg", "scouting/delay:30000")
        at = ("-m", "peer", "-e", self._endpoint)
        return self._start(self._second, name, *at, *settings, *options)

    def client(self, name: str, *options: str) -> Script:
        return self._start(self._second, name, "-m", "client", "-e", self._endpoint, *options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The examples as they are, and with the one line changed."""
    theirs = tmp_path_factory.mktemp("examples") / "zenoh"
    shutil.copytree(EXAMPLES, theirs)
    for path in theirs.glob("z_*.py"):
        text = path.read_text()
        assert text.count(OURS) == 1, path
        path.write_text(text.replace(OURS, THEIRS))
    return {"zenlake": EXAMPLES, "zenoh": theirs}


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def stage(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(folders, stack, *request.param)


@pytest.fixture
def our_stage(folders: dict[str, Path]) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(folders, stack, "zenlake", "zenlake")


@pytest.fixture
def mixed_stage(folders: dict[str, Path]) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(folders, stack, "zenlake", "zenoh")


def ticks(key: str, count: int) -> list[str]:
    return [f"{key}: [{i:4}] Tick" for i in range(count)]


@pytest.mark.process
def test_put_delete_and_sub(stage: Stage) -> None:
    sub = stage.first("sub", "-k", "demo/*")
    sub.expect("subscribed to demo/*")
    put = stage.client("put", "-k", "demo/a", "-p", "hi")
    put.expect("put demo/a: hi")
    put.end()
    sub.expect("demo/a: hi")
    delete = stage.client("delete", "-k", "demo/a")
    delete.expect("deleted demo/a")
    delete.end()
    sub.expect("demo/a was deleted")
    sub.interrupt()


@pytest.mark.process
@pytest.mark.parametrize("name", ["sub", "sub_queued"])
def test_pub_and_sub(stage: Stage, name: str) -> None:
    sub = stage.first(name, "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    pub = stage.peer("pub", "-k", "demo/tick", "-n", "3", "-i", "0.01", "--wait")
    sub.expect(*ticks("demo/tick", 3))
    published = [f"published {line}" for line in ticks("demo/tick", 3)]
    told = [line for line in (pub.line() for _ in range(4)) if line != "subscriber found"]
    assert told == published
    pub.end()
    sub.interrupt()


@pytest.mark.process
def test_pub_and_pull(stage: Stage) -> None:
    pull = stage.first("pull", "-k", "demo/**", "-s", "1", "-i", "0.05")
    pull.expect("subscribed to demo/**")
    stage.peer("pub", "-k", "demo/tick", "-n", "5", "-i", "0.001", "--wait")
    pull.until("demo/tick: [   4] Tick")
    assert len(pull.seen) <= 6
    pull.interrupt()


@pytest.mark.process
def test_get_and_queryable(stage: Stage) -> None:
    queryable = stage.first("queryable", "-k", "demo/q", "-p", "42")
    queryable.expect("answering on demo/q")
    get = stage.client("get", "-s", "demo/*?unit=m", "-p", "how far?")
    get.expect("demo/q: 42 (text/plain)", "no more replies")
    get.end()
    queryable.expect("query demo/*?unit=m with how far?")
    queryable.interrupt()


@pytest.mark.process
def test_get_without_a_queryable(stage: Stage) -> None:
    sub = stage.first("sub")
    sub.line()
    get = stage.client("get", "-s", "demo/unanswered")
    get.expect("no more replies")
    get.end()
    sub.interrupt()


@pytest.mark.process
def test_querier_and_queryable(stage: Stage) -> None:
    queryable = stage.first("queryable", "-k", "demo/q")
    queryable.expect("answering on demo/q")
    querier = stage.peer("querier", "-s", "demo/q?x=1", "-n", "2", "-i", "0.01", "--wait")
    for i in range(2):
        querier.expect(f"query {i}: demo/q?x=1", "demo/q: An answer")
        queryable.expect(f"query demo/q?x=1 with {i}")
    querier.end()
    queryable.interrupt()


@pytest.mark.process
def test_storage(stage: Stage) -> None:
    storage = stage.first("storage", "-k", "demo/**")
    storage.expect("storing demo/**")
    for key in ("demo/a", "demo/b"):
        stage.client("put", "-k", key, "-p", key.upper())
        storage.expect(f"stored {key}")
    get = stage.client("get", "-s", "demo/*")
    answers = {get.line(), get.line()}
    assert answers == {"demo/a: DEMO/A (text/plain)", "demo/b: DEMO/B (text/plain)"}
    get.expect("no more replies")
    storage.expect("query demo/*")
    stage.client("delete", "-k", "demo/a")
    storage.expect("deleted demo/a")
    get = stage.client("get", "-s", "demo/*")
    get.expect("demo/b: DEMO/B (text/plain)", "no more replies")
    storage.expect("query demo/*")
    storage.interrupt()


@pytest.mark.process
def test_liveliness(stage: Stage) -> None:
    watching = stage.first("sub_liveliness", "-k", "group/**", "--history")
    watching.expect("watching group/**")
    token = stage.peer("liveliness", "-k", "group/me")
    token.expect("alive as group/me")
    watching.expect("group/me appeared")
    get = stage.client("get_liveliness", "-k", "group/*", "-o", "20")
    get.expect("group/me is alive")
    get.end()
    token.interrupt()
    watching.expect("group/me disappeared")
    watching.interrupt()


@pytest.mark.process
def test_advanced_history(stage: Stage) -> None:
    pub = stage.first("advanced_pub", "-k", "demo/adv", "-n", "5", "-i", "0.001", "--cache", "3")
    pub.until("all published; the cache answers until Ctrl-C")
    sub = stage.peer("advanced_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**", *ticks("demo/adv", 5)[2:])
    sub.interrupt()
    pub.interrupt()


@pytest.mark.process
def test_advanced_live(stage: Stage) -> None:
    sub = stage.first("advanced_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    pub = stage.peer("advanced_pub", "-k", "demo/adv", "-n", "5", "-i", "0.01")
    sub.expect(*ticks("demo/adv", 5))
    pub.until("all published; the cache answers until Ctrl-C")
    pub.interrupt()
    sub.interrupt()


@pytest.mark.process
def test_info(stage: Stage) -> None:
    sub = stage.first("sub")
    sub.line()
    info = stage.peer("info")
    lines = [info.line() for _ in range(4)]
    assert re.fullmatch(r"own id: [0-9a-f]+", lines[0])
    assert lines[1] == "routers:"
    assert re.fullmatch(r"peers: [0-9a-f]+", lines[2])
    assert re.fullmatch(r"link: tcp/127.+ to tcp/127.+, MTU \d+ bytes", lines[3])
    info.end()
    sub.interrupt()


@pytest.mark.process
def test_ping_and_pong(stage: Stage) -> None:
    pong = stage.first("pong")
    pong.expect("ready")
    ping = stage.peer("ping", "8", "-n", "20", "-w", "0")
    assert re.fullmatch(
        r"8 bytes, 20 round trips: \d+ us minimum, \d+ median, \d+ maximum",
        ping.line(),
    )
    ping.end()
    pong.interrupt()


@pytest.mark.process
def test_throughput(stage: Stage) -> None:
    sub = stage.first("sub_thr", "-r", "2", "-n", "1000")
    sub.expect("subscribed to test/thr")
    pub = stage.peer("pub_thr", "8")
    pub.expect("publishing 8 bytes per message until Ctrl-C")
    for _ in range(2):
        assert re.fullmatch(r"\d+ messages per second", sub.line())
    pub.interrupt()


@pytest.mark.process
def test_scout(stage: Stage) -> None:
    scout = stage.peer("scout", "-s", "0.1", "--cfg", 'scouting/multicast/interface:"lo"')
    while not re.fullmatch(r"found \d+", scout.line()):
        pass
    scout.end()


@pytest.mark.process
def test_asyncio(our_stage: Stage) -> None:
    sub = our_stage.first("aio_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    pub = our_stage.peer("aio_pub", "-k", "demo/tick", "-n", "3", "-i", "0.01")
    pub.expect(*(f"published {line}" for line in ticks("demo/tick", 3)))
    pub.end()
    sub.expect(*ticks("demo/tick", 3))
    sub.interrupt()


@pytest.mark.process
def test_asyncio_and_the_reference(mixed_stage: Stage) -> None:
    sub = mixed_stage.first("aio_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    mixed_stage.peer("pub", "-k", "demo/tick", "-n", "3", "-i", "0.01", "--wait")
    sub.expect(*ticks("demo/tick", 3))
    sub.interrupt()


@pytest.mark.process
def test_arrow(our_stage: Stage) -> None:
    sub = our_stage.first("arrow_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    put = our_stage.client("arrow_put", "-k", "demo/arrow", "-n", "1000")
    put.expect("published 1000 rows")
    put.end()
    while not (line := sub.line()).endswith("1000 rows in all"):
        assert line.startswith("a batch of ")
    sub.interrupt()


@pytest.mark.process
def test_arrow_and_the_reference(mixed_stage: Stage) -> None:
    sub = mixed_stage.first("arrow_sub", "-k", "demo/**")
    sub.expect("subscribed to demo/**")
    mixed_stage.peer("pub", "-k", "demo/tick", "-n", "3", "-i", "0.01", "--wait")
    while not sub.line().endswith("3 rows in all"):
        pass
    sub.interrupt()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("z_*.py")), ids=lambda path: path.stem)
def test_the_table_names_it(path: Path) -> None:
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()
