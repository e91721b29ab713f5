"""How payloads are shown, where they come from, and how they get from thread to thread."""

import json
import threading
from contextlib import closing
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import until
from zenlake.cli import payload_input
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.render.sample import MAX_LINES, format_payload, view_payload
from zenlake.wire.encoding import PREDEFINED

ENCODINGS = st.sampled_from(PREDEFINED) | st.text(max_size=20)


@pytest.mark.parametrize(
    ("data", "encoding", "form", "value"),
    [
        (b'{"x": 1}', "application/json;pose", "json", {"x": 1}),
        (b"[1]", "application/vnd.fleet+json", "json", [1]),
        (b"{broken", "application/json", "text", "{broken"),
        (b"NaN", "application/json", "text", "NaN"),
        (b"\xff", "application/json", "hex", "ff"),
        ("grüße\n".encode(), "zenoh/bytes", "text", "grüße\n"),
        (b"a\x1bb", "text/plain", "hex", "611b62"),
        (b"abc", "application/octet-stream", "hex", "616263"),
        (b"abc", "video/mp4", "hex", "616263"),
        (b"", "zenoh/bytes", "text", ""),
    ],
)
def test_form_and_value(data: bytes, encoding: str, form: str, value: object) -> None:
    assert view_payload(data, encoding) == (form, value)


def test_json_that_is_too_deep_is_text() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert view_payload(deep, "application/json").form == "text"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), ENCODINGS)
def test_any_payload_can_be_view_payload(data: bytes, encoding: str) -> None:
    assert all(line.isprintable() for line in format_payload(data, encoding))
    form, value = view_payload(data, encoding)
    json.loads(json.dumps(value, allow_nan=False))
    if form == "hex":
        assert bytes.fromhex(value) == data
    elif form == "text":
        assert value.encode() == data


def test_a_long_payload_is_cut() -> None:
    lines = format_payload(b"x\n" * 1000, "text/plain")
    assert lines == ["x"] * MAX_LINES + [f"... {1000 - MAX_LINES} more lines"]
    (line,) = format_payload(b"x" * 100_000, "text/plain")
    assert len(line) < 1000
    assert line.endswith("...")
    (line,) = format_payload(b"\0" * 100_000, "")
    assert len(line) < 1000


def test_a_payload_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_input, "MAX_PAYLOAD_BYTES", 3)
    file = tmp_path / "large"
    file.write_bytes(b"1234")
    with pytest.raises(typer.BadParameter, match="is larger than 3 bytes"):
        payload_input.read_payload(None, file)
    file.write_bytes(b"123")
    assert payload_input.read_payload(None, file) == b"123"


def test_an_inbox_keeps_the_order_and_its_limit() -> None:
    with closing(CallbackQueue[int](capacity=2)) as inbox:
        put: list[int] = []

        def fill() -> None:
            for number in range(5):
                inbox.put(number)
                put.append(number)

        thread = threading.Thread(target=fill)
        thread.start()
        until(lambda: len(put) == 2)
        assert list(inbox.items(count=5)) == [0, 1, 2, 3, 4]
        thread.join(60)
        assert not thread.is_alive()
        assert inbox.take(0.01) is None
        assert list(inbox.items(seconds=0.01)) == []


def test_leaving_an_inbox_frees_who_waits() -> None:
    inbox = CallbackQueue[int](capacity=1)
    inbox.put(1)
    thread = threading.Thread(target=inbox.put, args=(2,))
    thread.start()
    inbox.close()
    thread.join(60)
    assert not thread.is_alive()
    assert list(inbox.drain()) == [1]


def test_what_an_inbox_has_no_room_for_is_counted() -> None:
    inbox = CallbackQueue[int](capacity=1)
    inbox.offer(1)
    inbox.offer(2)
    assert (list(inbox.drain()), inbox.dropped) == ([1], 1)
