"""Numbered steps that change a disk, so that a crash can be put before or after each of them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Place = tuple[Any, str]
"Owner and name of a function that is a step."


class Steps:
    """Counts the calls of some functions; before or after one of them something else happens."""

    def __init__(
        self,
        places: Sequence[Place],
        at: int | None = None,
        after: bool = False,
        happens: Callable[[], None] | None = None,
    ) -> None:
        self.count = 0
        self._places = places
        self._at, self._after, self._happens = at, after, happens

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in self._places:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            mine, self.count = self.count, self.count + 1
            happens = self._happens if mine == self._at else None
            if happens is not None and not self._after:
                happens()
            found = step(*args, **kwargs)
            if happens is not None and self._after:
                happens()
            return found

        return counted


def breaks_off() -> None:
    """Happen as a disk that goes away."""
    raise OSError("the disk is gone")
