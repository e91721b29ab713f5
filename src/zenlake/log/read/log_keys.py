"""The keys that the ids in recorded messages stand for.

Knows links and key prefixes, which the kernel collects from blocks. Does not read blocks itself.
"""

import numpy as np

from zenlake.keytable import KeyTable
from zenlake.log.kernels import blocks as kernel
from zenlake.log.kernels.blocks import LinkTables

FIRST_PREFIXES, FIRST_PREFIX_BYTES = 1 << 10, 64 << 10  # Initial room for prefixes, which doubles.
MAX_PREFIX_BYTES = 64 << 20  # Size of prefixes at which the next table begins.


class LogKeys:
    """Table of the key prefixes behind the ids of a log: link << 17 | mapping << 16 | scope.

    One table serves many blocks. Its entries do not change, and no two tables share a `version`.
    """

    def __init__(self) -> None:
        self.version = KeyTable().version  # Unique among all key tables.
        self.longest = 0
        "Length of the longest prefix."
        self.incomplete = False
        "Whether `prefix` was asked for a number that has none (so far)."
        self.tables = LinkTables(
            np.zeros(kernel.MAX_LINKS * kernel.LINK_BYTES, np.uint8),
            np.zeros(kernel.NUMBERS, np.int32),
            np.zeros(FIRST_PREFIXES + 1, np.int64),
            np.zeros(FIRST_PREFIX_BYTES, np.uint8),
            np.zeros(3, np.int64),
        )
        self._prefixes: list[bytes] = []

    def prefix(self, number: int, /) -> bytes | None:
        """Return the UTF-8 text that a number stands for; None if it has not been declared."""
        if not number & 0xFFFF:
            return b""
        place = int(self.tables.prefix_of[number])
        if not place:
            self.incomplete = True
            return None
        return self._prefixes[place - 1]

    @property
    def is_fresh(self) -> bool:
        return not self.tables.used[0]

    def note_new(self) -> None:
        """Read the prefixes that a kernel has added to `tables`."""
        ends, data = self.tables.ends, self.tables.prefixes
        for place in range(len(self._prefixes), int(self.tables.used[1])):
            prefix = data[int(ends[place]) : int(ends[place + 1])].tobytes()
            self._prefixes.append(prefix)
            self.longest = max(self.longest, len(prefix))

    def enlarge(self, text: int, must: bool) -> bool:
        """Make room for `text` more bytes of prefixes.

        Return False if the table has reached its limit, unless it `must` grow.
        """
        links, size = self.tables, len(self.tables.prefixes)
        if size + text > MAX_PREFIX_BYTES and not must:
            return False
        ends = np.zeros(2 * len(links.ends), np.int64)
        prefixes = np.zeros(2 * size + text, np.uint8)
        ends[: len(links.ends)] = links.ends
        prefixes[:size] = links.prefixes
        self.tables = links._replace(ends=ends, prefixes=prefixes)
        return True
