"""Zenoh in Python, from the wire to the lakehouse.

`import zenlake as zenoh` gives `eclipse-zenoh`'s API and more. Importing it loads nothing heavy:
the API, NumPy, Numba, Arrow and Spark load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zenlake.api import *  # noqa: F403

__version__ = "0.1.0"

_MODULES = ("aio", "capture", "ext", "handlers", "log", "router", "shm", "spark")
_FUNCTIONS = ("init_log_from_env_or", "open", "scout", "try_init_log_from_env")
_STARRED = ("ext", "handlers", "shm")  # Submodules that `import *` brings besides the API's names.


def __getattr__(name: str) -> Any:
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
