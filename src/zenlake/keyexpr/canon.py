"""The grammar of key expressions: validity, canonical spelling, and errors.

Knows nothing of matching, messages or sessions. Everything that takes a key from outside (the
API, the wire, a configuration file) calls `validate` or `canonize`, then may trust the text.
"""

import re

from zenlake.errors import InvalidKeyExpr

MAX_KEY_BYTES = 65_535
"""Longest key expression in UTF-8: on the wire the length of a key is a u16."""

DOUBLE_WILD = "**"

_PLAIN = re.compile(r"[^/*$#?]+(?:/[^/*$#?]+)*")
"""A key without wildcards, the common case, which is canonical as it stands."""

_FAULT = re.compile(r"[#?]|\$(?!\*)|(?<!\$)\*")
"""Characters that a chunk other than `*` and `**` must not have."""

_ADVICE = {
    "#": "is not allowed in a key; leave it out",
    "?": "is not allowed in a key; write only what stands before it",
    "$": "is only allowed in `$*`; write `$*` for any characters of a chunk, or leave it out",
    "*": "is not allowed inside a chunk; write `$*` for any characters of a chunk, "
    "`*` for one whole chunk, `**` for any number of chunks",
}

_NON_CANONICAL = re.compile(
    r"\$\*\$\*"  # a run of $*
    r"|(?<![^/])\$\*(?![^/])"  # $* as a whole chunk
    r"|(?<![^/])\*\*/\*\*?(?![^/])"  # ** before * or **
)

_SHOWN = 80
"""Characters of a key that an error message shows: keys from peers end up in logs."""


def validate(text: str) -> None:
    """Raise InvalidKeyExpr unless `text` is a key expression in canonical form.

    >>> validate("robot/*/battery")
    >>> validate("a/**/*")
    Traceback (most recent call last):
    zenlake.errors.InvalidKeyExpr: 'a/**/*': `**/*` at index 2 is not canonical; write 'a/*/**'
    """
    canonical = canonize(text)
    if canonical == text:
        return
    found = _NON_CANONICAL.search(text)
    assert found is not None, "canonize changes only what this finds"
    problem = f"`{found[0]}` at index {found.start()} is not canonical"
    raise InvalidKeyExpr(f"{_show(text)}: {problem}; write {_show(canonical)}")


def is_canonical(text: str) -> bool:
    """Return whether `text` is a key expression in canonical form.

    >>> is_canonical("a/*/**"), is_canonical("a/**/*"), is_canonical("a//b")
    (True, False, False)
    """
    try:
        return canonize(text) == text
    except InvalidKeyExpr:
        return False


def canonize(text: str) -> str:
    """Return the canonical spelling of `text`; raise InvalidKeyExpr if it is not a key expression.

    >>> canonize("a/**/*/b$*$*/$*")
    'a/*/**/b$*/*'
    """
    if _PLAIN.fullmatch(text) is None:
        _require_well_formed(text)
        text = _rewrite(text)
    _require_short(text)
    return text


def _require_well_formed(text: str) -> None:
    start = 0
    for chunk in text.split("/"):
        if not chunk:
            raise InvalidKeyExpr(
                f"{_show(text)}: empty chunk at index {start}; "
                "write one `/` between chunks and none at the ends"
            )
        if chunk not in ("*", DOUBLE_WILD) and (found := _FAULT.search(chunk)):
            at = start + found.start()
            raise InvalidKeyExpr(f"{_show(text)}: `{found[0]}` at index {at} {_ADVICE[found[0]]}")
        start += len(chunk) + 1


def _rewrite(text: str) -> str:
    chunks = []
    double_wild = False
    for chunk in text.split("/"):
        single = _single_dollar_stars(chunk)
        if single == DOUBLE_WILD:
            double_wild = True
        elif single == "*":
            # `**/*` and `*/**` match the same keys; the second is canonical.
            chunks.append(single)
        else:
            if double_wild:
                chunks.append(DOUBLE_WILD)
                double_wild = False
            chunks.append(single)
    if double_wild:
        chunks.append(DOUBLE_WILD)
    return "/".join(chunks)


def _single_dollar_stars(chunk: str) -> str:
    single = re.sub(r"(?:\$\*)+", "$*", chunk)
    return "*" if single == "$*" else single


def _require_short(text: str) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidKeyExpr(
            f"{_show(text)}: the surrogate at index {error.start} has no UTF-8 form; leave it out"
        ) from None
    if size > MAX_KEY_BYTES:
        raise InvalidKeyExpr(f"{_show(text)}: {size} bytes of UTF-8; write at most {MAX_KEY_BYTES}")


def _show(text: str) -> str:
    return f"{text!a}" if len(text) <= _SHOWN else f"{text[:_SHOWN]!a}..."
