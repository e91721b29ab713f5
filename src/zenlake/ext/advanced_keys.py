"""Keys of advanced publishers and subscribers: `<key>/@adv/pub|sub/<zid>/<eid|uhlc>/<meta>`.

Knows how they are written and read. Does not know who declares them. `@adv` is a verbatim chunk: no
`*` or `**` of an application matches it.
"""

from zenlake.wire.zenohid import WireZenohId

ADV = "@adv"
UHLC = "uhlc"  # Stands for the entity id where only timestamps order the samples.
NO_META = "_"


def own_key(key: str, kind: str, zid: object, entity: object) -> str:
    """Return the key of one publisher (`kind` is "pub") or subscriber ("sub").

    >>> own_key("a/b", "pub", "c0ffee", 7)
    'a/b/@adv/pub/c0ffee/7/_'
    """
    return f"{key}/{ADV}/{kind}/{zid}/{entity}/{NO_META}"


def all_publishers_key(key: str) -> str:
    """Return the key for asking all publishers on `key` for history."""
    return f"{key}/{ADV}/**"


def publishers_key(key: str) -> str:
    """Return the key of the tokens and heartbeats of publishers on `key`."""
    return f"{key}/{ADV}/pub/**"


def source_key(key: str, source: str) -> str:
    """Return the key for asking for samples of one source (`<zid>/<eid>`).

    >>> source_key("a/**", "c0ffee/7")
    'a/**/@adv/*/c0ffee/7/**'
    """
    return f"{key}/{ADV}/*/{source}/**"


def parse_source(key: str) -> str | None:
    """Return `<zid>/<eid|uhlc>` of a publisher's key; None if it has none.

    >>> parse_source("a/b/@adv/pub/c0ffee/7/_"), parse_source("a/@adv/pub/c0ffee/uhlc/x/y")
    ('c0ffee/7', 'c0ffee/uhlc')
    >>> parse_source("a/b/@adv/pub/*/7/_"), parse_source("a/b")
    (None, None)
    """
    chunks = key.rpartition(f"/{ADV}/")[2].split("/")
    if len(chunks) < 3:
        return None
    zid, entity = chunks[1:3]
    try:
        WireZenohId.parse(zid)
    except ValueError:
        return None
    known = entity == UHLC or (entity.isascii() and entity.isdigit())
    return f"{zid}/{entity}" if known else None
