"""Record of the tables that a query has filled: a small JSON file beside its checkpoint.

With it a table that was removed is told from a table that has not been made yet. Does not know
Spark or Delta.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from zenlake.errors import ZError

FILE = "tables.json"


class TableRemoved(ZError):
    """Table that a query has filled and that is gone: going on would leave out its first rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was filled before and is gone, so that a table made now would start in the "
            f"middle: put it back, or fill it again from the log: zenlake lake reset LAKE "
            f"{path.name}"
        )


class TableRecord:
    """Names of the tables that one query has filled."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def names(self) -> frozenset[str]:
        """Return the recorded names; none if there is no record. ZError: it is damaged."""
        try:
            found = json.loads(self._path.read_text())["tables"]
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ZError(
                f"{self._path} cannot be read ({error}): remove it if all tables are in place"
            ) from None
        return frozenset(map(str, found))

    def replace(self, names: Iterable[str]) -> None:
        """Write the names, durably, if they differ from the recorded ones."""
        names = frozenset(names)
        if names == self.names():
            return
        replace_file(self._path, json.dumps({"tables": sorted(names)}))


def replace_file(path: Path, text: str) -> None:
    """Write a small file durably; a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
