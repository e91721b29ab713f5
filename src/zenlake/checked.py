"""Checked options: kinds of values, unknown names with the nearest known one, and what errors say.

Knows how a value is read and refused. Does not know any option, nor where options are written.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from zenlake.errors import ZError
from zenlake.quantities import Ambiguous

MAX_SHOWN = 60  # Characters of a refused value that an error repeats.


Reader = Callable[[Any], Any]


class Kind(NamedTuple):
    """How a value is written, in words, and how it is read; ValueError or TypeError: it is not."""

    what: str
    read: Reader


def read(kind: Kind, value: Any, where: str, *, secret: bool = False) -> Any:
    """Return the value of an option, read; ZError names option, value, cause and remedy.

    >>> read(one_of("lz4", "zstd"), "gzip", "option 'codec'")
    Traceback (most recent call last):
    zenlake.errors.ZError: option 'codec': 'gzip' is not one of lz4, zstd
    """
    problem = "what it holds" if secret else shorten(repr(value))
    try:
        return kind.read(value)
    except Ambiguous as ambiguous:
        problem = str(ambiguous)
    except (ValueError, TypeError, OverflowError):
        problem += f" is not {kind.what}"
    raise ZError(f"{where}: {problem}")  # Outside of the except: a cause may quote a secret.


def shorten(text: str) -> str:
    """Return at most MAX_SHOWN characters of a text, and whether there were more."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


# ---- names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`."""
    return next(iter(get_close_matches(name, list(known), 1)), None)


def suggest(name: str, known: Iterable[str] | Mapping[str, str], quoted: str = "{!r}") -> str:
    """Return what to write instead of `name`; a mapping leads from names to how they are shown.

    >>> suggest("selektor", ["selector", "timeout"]), suggest("x", ["selector", "timeout"], "{}")
    ("did you mean 'selector'?", 'there are selector, timeout')
    """
    shown = (
        known if isinstance(known, Mapping) else {known_name: known_name for known_name in known}
    )
    near = nearest(name, shown)
    if near is not None:
        return f"did you mean {quoted.format(shown[near])}?"
    return f"there are {', '.join(quoted.format(text) for text in shown.values())}"


def unknown_option(name: str, known: Mapping[str, str]) -> ZError:
    """Return the error for an option that does not exist."""
    return ZError(f"there is no option {name!r}; {suggest(name.lower(), known)}")


# ---- readers that several kinds share


def when(fits: Callable[[Any], object], read: Callable[[Any], Any] | None = None) -> Reader:
    """Return the reader of values that fit; `read` turns them into what is stored."""

    def take(value: Any) -> Any:
        if not fits(value):
            raise ValueError
        return value if read is None else read(value)

    return take


text = when(lambda value: isinstance(value, str) and value.strip())
"Reads a text that is not empty."


def whole(least: int, most: int = (1 << 63) - 1) -> Reader:
    """Read an integer from `least` to `most`."""
    return when(lambda value: type(value) is int and least <= value <= most)


def one_of(*words: str, spell: Callable[[str], str] = str) -> Kind:
    """Read one of `words`, after `spell`."""
    fits = when(lambda value: isinstance(value, str) and spell(value) in words, spell)
    return Kind(f"one of {', '.join(words)}", fits)


TEXT = Kind("a text that is not empty", text)
