"""The range of time in a selector's `_time`, as the HLC times of a column that lie in it.

Knows the column and where `_time` ends among parameters; its grammar is in quantities.py.
"""

import re
from typing import NamedTuple

from zenlake.quantities import first_ntp64, last_ntp64, time_range

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1  # Bounds of a column that holds NTP64, signed.

_PARAMETER = re.compile(r"(?:^|;)_time=([\[\]][^\[\]]*[\[\]])(?=;|$)")


class HlcRange(NamedTuple):
    """Times from `low` to `high`, both included; nothing if `low` is above `high`."""

    low: int = LOWEST
    high: int = HIGHEST


EVERYTHING = HlcRange()


def of_parameters(text: str, value: str) -> str:
    """Return the text of `_time` among parameters; `value` is what stands before the next `;`.

    A duration has a `;` of its own, which is also what separates parameters.

    >>> of_parameters("_max=1;_time=[now(-1h);10m]", "[now(-1h)")
    '[now(-1h);10m]'
    """
    found = _PARAMETER.search(text)
    return value if found is None else found[1]


def hlc_range(text: str, now: int) -> HlcRange:
    """Return what `_time=text` means when it is read at `now`, in nanoseconds since 1970.

    >>> hlc_range("[..]", 0) == EVERYTHING
    True
    """
    start, end = time_range(text, now)
    return HlcRange(
        LOWEST if start is None else min(max(first_ntp64(start), LOWEST), HIGHEST),
        HIGHEST if end is None else min(max(last_ntp64(end), LOWEST), HIGHEST),
    )
