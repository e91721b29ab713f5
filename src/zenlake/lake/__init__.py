"""A lake: Delta tables filled from recorded Zenoh samples by Spark flows, and views of them.

Exports what transformations and notebooks use. Importing it loads neither Spark nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zenlake.lake.pipeline import views
    from zenlake.lake.pipeline.flows import decoded, flow, read, stream, table
    from zenlake.lake.project import Project

__all__ = ["Project", "decoded", "flow", "read", "stream", "table", "views"]

_HOMES = {
    "Project": "zenlake.lake.project",
    "decoded": "zenlake.lake.pipeline.flows",
    "flow": "zenlake.lake.pipeline.flows",
    "read": "zenlake.lake.pipeline.flows",
    "stream": "zenlake.lake.pipeline.flows",
    "table": "zenlake.lake.pipeline.flows",
    "views": "zenlake.lake.pipeline.views",
}

if not TYPE_CHECKING:  # Checkers know the names from above, and that there are no others.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'zenlake.lake' has no attribute {name!r}")
        home = import_module(_HOMES[name])
        value = home if name == "views" else getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
