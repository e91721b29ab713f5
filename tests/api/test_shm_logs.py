"""The names and values of zenlake.shm; logging follows the environment."""

import copy
import inspect
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import zenoh.shm

from zenlake import shm
from zenlake.api.config import logging_env

# Shared memory -----------------------------------------------------------------------------------


def test_every_name_of_the_reference_is_there() -> None:
    names = {name for name in dir(zenoh.shm) if not name.startswith("_")}
    assert names == set(shm.__all__)
    assert names <= set(dir(shm))
    for name in names:
        theirs, ours = getattr(zenoh.shm, name), getattr(shm, name)
        for member in (name for name in dir(theirs) if not name.startswith("_")):
            assert hasattr(ours, member), f"{name}.{member}"


@pytest.mark.parametrize("name", ["AllocAlignment", "BlockOn", "Deallocate", "GarbageCollect"])
def test_parameters_have_the_names_of_the_reference(name: str) -> None:
    theirs = inspect.signature(getattr(zenoh.shm, name))
    assert list(inspect.signature(getattr(shm, name)).parameters) == list(theirs.parameters)


@pytest.mark.parametrize("use", [shm.ShmProvider, shm.ZShm, shm.ZShmMut])
def test_only_the_package_makes_providers_and_buffers(use: Any) -> None:
    with pytest.raises(TypeError, match="No constructor defined for"):
        use()


def outcome(call: Any) -> Any:
    """Return the result of a call, or the name of its error."""
    try:
        return call()
    except Exception as problem:  # noqa: BLE001  # whatever the reference raises
        return type(problem).__name__


@pytest.mark.parametrize("pow_", [0, 1, 3, 8, 63, 64, 255, 256, -1, "a", 2.0])
@pytest.mark.parametrize("size", [0, 1, 5, 8, 1000])
def test_alignments_are_those_of_the_reference(pow_: Any, size: int) -> None:
    theirs, ours = zenoh.shm.AllocAlignment, shm.AllocAlignment
    assert outcome(lambda: ours(pow_).get_alignment_value()) == outcome(
        lambda: theirs(pow_).get_alignment_value()
    )
    assert outcome(lambda: ours(pow_).align_size(size)) == outcome(
        lambda: theirs(pow_).align_size(size)
    )


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(OverflowError):
        shm.AllocAlignment(2).align_size(-1)


@pytest.mark.parametrize("size", [-1, 0, 1, 10, 16])
@pytest.mark.parametrize("pow_", [None, 0, 1, 2, 3])
def test_layouts_are_those_of_the_reference(size: int, pow_: int | None) -> None:
    def layout(module: Any) -> tuple[int, int]:
        obj = size if pow_ is None else (size, module.AllocAlignment(pow_))
        made = module.MemoryLayout(obj)
        return made.size, made.alignment.get_alignment_value()

    assert outcome(lambda: layout(shm)) == outcome(lambda: layout(zenoh.shm))


@pytest.mark.parametrize("obj", ["a", (10,), None, (10, 1)])
def test_a_layout_is_a_size_or_a_size_and_an_alignment(obj: Any) -> None:
    with pytest.raises(TypeError, match="expected int/tuple"):
        shm.MemoryLayout(obj)


def test_policies_hold_policies() -> None:
    nested = shm.BlockOn(shm.Defragment(shm.GarbageCollect(safe=False), shm.Deallocate(3)))
    assert nested.inner_policy is not None
    assert shm.BlockOn(None) != shm.BlockOn()
    for wrong in (lambda: shm.BlockOn("a"), lambda: shm.Deallocate(3, 4)):  # type: ignore
        with pytest.raises(TypeError, match="argument 'inner_policy': expected policy type"):
            wrong()
    with pytest.raises(OverflowError):
        shm.Deallocate(-1)


@pytest.mark.parametrize(
    "value",
    [
        shm.AllocAlignment(3),
        shm.MemoryLayout((16, shm.AllocAlignment(3))),
        shm.JustAlloc(),
        shm.GarbageCollect(shm.BlockOn(), None, safe=False),
        shm.Deallocate(3),
    ],
)
def test_values_are_equal_after_pickle_and_copy(value: Any) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert again == value
        assert hash(again) == hash(value)
        assert repr(again) == repr(value)
    assert value != "something else"
    assert shm.AllocAlignment(0) < shm.AllocAlignment.ALIGN_2_BYTE


# Logging -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "levels"),
    [
        ("info", {"zenlake": logging.INFO}),
        ("WARN", {"zenlake": logging.WARNING}),
        ("off", {"zenlake": logging_env.OFF}),
        ("trace", {"zenlake": logging_env.TRACE}),
        ("zenlake", {"zenlake": logging_env.TRACE}),
        ("debug,zenlake.link=error", {"zenlake": logging.DEBUG, "zenlake.link": logging.ERROR}),
        (" zenlake::link = warn ,", {"zenlake": logging.ERROR, "zenlake.link": logging.WARNING}),
        ("zenoh=info", {"zenlake": logging.INFO}),
        ("zenoh_transport::unicast=debug", {"zenlake": logging.DEBUG}),
        ("zenohd=info,zenlakes=info", {"zenlake": logging.ERROR}),
        ("hyper=trace,tokio", {"zenlake": logging.ERROR}),
        ("zenlake=loud,,a=b=c,=,info", {"zenlake": logging.INFO}),
        ("", {"zenlake": logging.ERROR}),
    ],
)
def test_directives_are_levels_by_logger(directives: str, levels: dict[str, int]) -> None:
    assert logging_env.log_levels(directives) == levels


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in logging_env.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    level, given = logging_env.log.level, logging_env.log.handlers[:]
    yield
    for name in logging_env._configured:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging_env._configured.clear()
    logging_env.log.setLevel(level)
    logging_env.log.handlers[:] = given


@pytest.mark.usefixtures("_restored")
def test_the_last_call_counts_and_there_is_one_handler() -> None:
    logging_env.init_log_from_env_or("info,zenlake.link=debug")
    assert logging.getLogger("zenlake.link").level == logging.DEBUG
    logging_env.init_log_from_env_or("warn")
    logging_env.init_log_from_env_or("warn")
    assert logging_env.log.level == logging.WARNING
    assert logging.getLogger("zenlake.link").level == logging.NOTSET
    assert logging_env.log.handlers.count(logging_env._stderr) == 1


@pytest.mark.usefixtures("_restored")
def test_the_environment_comes_before_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    logging_env.try_init_log_from_env()
    assert logging_env._stderr not in logging_env.log.handlers
    monkeypatch.setenv("RUST_LOG", "zenoh=debug")
    logging_env.init_log_from_env_or("error")
    assert logging_env.log.level == logging.DEBUG
    monkeypatch.setenv("ZENLAKE_LOG", "info")
    logging_env.try_init_log_from_env()
    assert logging_env.log.level == logging.INFO


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    ("directives", "named"),
    [("error", True), ("debug", True), ("off", False), ("error,zenlake.config.ignored=off", False)],
)
def test_keys_without_effect_are_named_also_where_errors_alone_are_asked_for(
    directives: str, named: bool
) -> None:
    logging_env.init_log_from_env_or(directives)
    logger = logging.getLogger(logging_env.IGNORED_KEYS)
    assert logger.isEnabledFor(logging.WARNING) is named


def run(code: str) -> subprocess.CompletedProcess[str]:
    before = "import logging, os\nfrom zenlake.api.config import logging_env as logs\n"
    return subprocess.run(
        [sys.executable, "-c", before + code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.process
def test_records_go_to_stderr() -> None:
    ended = run(
        "os.environ['RUST_LOG'] = 'info'\n"
        "logs.try_init_log_from_env()\n"
        "logging.getLogger('zenlake.link').info('seen')\n"
        "logging.getLogger('zenlake.link').debug('not seen')\n"
    )
    assert ended.returncode == 0
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.endswith(" INFO MainThread zenlake.link: seen")


@pytest.mark.process
def test_a_program_that_configured_logging_gets_each_record_once() -> None:
    ended = run(
        "logs.init_log_from_env_or('info')\n"
        "logging.basicConfig(format='mine %(message)s', level=0)\n"
        "logging.getLogger('zenlake').info('seen')\n"
    )
    assert ended.stderr == "mine seen\n"
