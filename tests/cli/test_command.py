"""The installed command: help, version, pipes, interruption, and what it costs to start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_in_process import decode, zenlake
from tests.support.decode_vectors import DIRECTIONS
from zenlake import __version__

SCRIPT = Path(sys.executable).parent / "zenlake"
RECORDED = DIRECTIONS["client_router/A"]


@pytest.mark.process
def test_installed_script_decodes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sent.bin"
    file.write_bytes(RECORDED.data)
    done = subprocess.run([SCRIPT, "decode", file], capture_output=True, check=True)
    assert done.stdout.decode() == decode(RECORDED.data).stdout
    assert done.stderr == b""


@pytest.mark.process
@pytest.mark.parametrize("mode", [[], ["--json"], ["--summary"], ["--verify"]])
def test_reader_that_goes_away_ends_it_quietly(mode: list[str], tmp_path: Path) -> None:
    file = tmp_path / "sent.bin"
    file.write_bytes(RECORDED.data)
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [str(SCRIPT), "decode", str(file), *mode]
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.process
def test_output_that_cannot_be_encoded_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "sent.bin"
    file.write_bytes(RECORDED.data)
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([SCRIPT, "decode", file], capture_output=True, env=env, check=True)
    assert b"PUSH/PUT  demo/a/x" in done.stdout


def test_interruption_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["zenlake.cli.commands.decode"], "read_source", interrupted)
    result = decode(b"")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_version() -> None:
    assert zenlake("--version").stdout == f"zenlake {__version__}\n"


def test_help_names_the_subcommand_and_its_options() -> None:
    assert "decode" in zenlake("--help").stdout
    text = zenlake("decode", "--help").stdout
    for option in ("--hex", "--scouting", "--framing", "--compression", "--json", "--summary"):
        assert option in text
    for said in ("--verify", "--top", "Exit status", "echo '01 00 04' | zenlake decode"):
        assert said in text


def test_the_example_in_the_help_works() -> None:
    assert decode(b"01 00 04\n").stdout == "batch 1  offset 0  1 byte\n└─ KEEP_ALIVE  @2\n"


@pytest.mark.process
def test_decoding_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from zenlake.cli import app\n"
        "app(['decode'], standalone_mode=False)\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(heavy))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=RECORDED.data, capture_output=True, check=True)
    assert b"PUSH/PUT  demo/a/x" in done.stdout
    assert done.stderr == b""
