"""Tables that fit the terminal, and lines where they do not."""

import pytest
from rich.console import Console
from rich.table import Table

from zenlake.cli import printing


def narrow(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    console = Console(width=width, highlight=False, markup=False)
    monkeypatch.setattr(printing, "console", lambda: console)


def test_a_table_that_fits_is_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow(monkeypatch, 40)
    printing.print_table(printing.properties_table([("log", "day.log")]))
    assert "│ log │ day.log │" in capsys.readouterr().out


def test_a_property_that_does_not_fit_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow(monkeypatch, 20)
    printing.print_table(printing.properties_table([("log", "x" * 50), ("", "more"), ("id", "")]))
    assert capsys.readouterr().out == f"log: {'x' * 50}\nmore\n"


def test_a_row_that_does_not_fit_is_a_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow(monkeypatch, 20)
    table = Table("key", "value", title="replies")
    table.add_row("a/b", "first\nsecond line of the value")
    table.add_row("c", "")
    printing.print_table(table)
    assert capsys.readouterr().out == (
        "replies\nkey: a/b\nvalue: first\n  second line of the value\n\nkey: c\n\n"
    )
