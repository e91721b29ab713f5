"""Zenoh in Python, from the wire to the lakehouse.

`import zenlake as zenoh` gives `eclipse-zenoh`'s API and more. Importing it loads nothing heavy:
the API, NumPy, Numba, Arrow and Spark load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zenlake import aio as aio
    from zenlake import capture as capture
    from zenlake import ext as ext
    from zenlake import handlers as handlers
    from zenlake import log as log
    from zenlake import router as router
    from zenlake import shm as shm
    from zenlake import spark as spark
    from zenlake.api import *  # noqa: F403

    EntityId = int  # Names that eclipse-zenoh has in its stubs alone, for annotations.
    SourceSn = int

__version__ = "0.1.0"

_MODULES = ("aio", "capture", "ext", "handlers", "log", "router", "shm", "spark")
_FUNCTIONS = ("init_log_from_env_or", "open", "scout", "try_init_log_from_env")
_STARRED = ("ext", "handlers", "shm")  # Submodules that `import *` brings besides the API's names.

if not TYPE_CHECKING:  # Checkers know the names from above, and that there are no others.

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"zenlake.{name}")
        if name == "__all__":
            return [*import_module("zenlake.api").__all__, *_STARRED]
        if name[0].isupper() or name in _FUNCTIONS:  # Not a submodule: those load without the API.
            api = import_module("zenlake.api")
            if name in api.__all__:
                value = getattr(api, name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'zenlake' has no attribute {name!r}")


def __dir__() -> list[str]:
    api: list[str] = import_module("zenlake.api").__all__
    return sorted({*globals(), *api, *_MODULES})
