"""Standard output: lines of JSON for programs, text and tables for people.

Knows the terminal and its width. Does not know what is printed.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MAX_WIDTH = 1 << 20  # Upper bound on the measured width of a table, in characters.


def print_object(fields: dict[str, Any]) -> None:
    """Print one line of JSON, and flush it so that a program sees it at once."""
    # JSON leaves DEL as it is, the one control character that ASCII text can then still hold.
    sys.stdout.write(json.dumps(fields).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def print_text(text: "Text | str") -> None:
    """Print a line for people; a terminal may wrap it, a file gets it whole."""
    console().print(text, soft_wrap=True)


def print_line(line: "dict[str, Any] | Text | str") -> None:
    """Print an object for programs, or a text for people."""
    if isinstance(line, dict):
        print_object(line)
    else:
        print_text(line)


def print_table(table: "Table") -> None:
    """Print a table; if it is wider than the terminal, `name: value` lines instead.

    A table with a header becomes one block per row, without a header one line per row.
    """
    to = console()
    if to.measure(table, options=to.options.update(max_width=MAX_WIDTH)).maximum <= to.width:
        to.print(table)
        return
    if table.title:
        to.print(table.title, style="italic", soft_wrap=True)
    for row in _rows(table):
        if table.show_header:
            for column, text in zip(table.columns, row, strict=True):
                _print_value(str(column.header), text)
            print_text("")
        else:
            _print_value(row[0], " ".join(row[1:]))


def _rows(table: "Table") -> Iterator[list[str]]:
    from rich.text import Text

    for cells in zip(*(column.cells for column in table.columns), strict=True):
        yield [cell.plain if isinstance(cell, Text) else str(cell) for cell in cells]


def _print_value(name: str, value: str) -> None:
    from rich.text import Text

    if value:
        lines = value.replace("\n", "\n  ")
        print_text(Text.assemble((f"{name}: " if name else "", "dim"), lines))


def properties_table(rows: "Iterable[tuple[str, str]]" = ()) -> "Table":
    """Return a table of two columns, name and value, without a header."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


@cache
def console() -> "Console":
    """Return the console of standard output."""
    from rich.console import Console

    return Console(highlight=False, markup=False)
