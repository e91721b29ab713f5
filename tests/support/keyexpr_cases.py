"""Key expressions with known answers, and random ones.

Every row was run on eclipse-zenoh 1.10.2 when the tables were written.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st

from zenlake.keyexpr import canonize

ERRORS = [
    *["", "/a", "a/", "a//b", "/", "//"],
    *["a*", "*a", "***"],
    *["$", "a$b", "$$*", "$**", "a$**", "**$*", "a/b/*$*"],
    *["a#b", "a?b"],
]
"""No key expression, and no repair."""

CANONICAL = ["$*a$*", "*/*", "**/a/**", "@", "a b", "é", "a/../b", "a;b=c+d", "@a$*", "a\0\n"]

NON_CANONICAL = {
    "a/**/*": "a/*/**",
    "**/*/**": "*/**",
    "a/**/**": "a/**",
    "$*": "*",
    "$*$*": "*",
    "a$*$*": "a$*",
    "a/b$*$*c": "a/b$*c",
    "a/$*": "a/*",
    "**/$*/**/$*$*/a": "*/*/**/a",
    "a$*$*$*$*b$*$*": "a$*b$*",
}

RELATIONS = [
    # A, B, they intersect, A includes B, B includes A
    ("*", "abc", True, True, False),
    ("*", "x/abc", False, False, False),
    ("**", "*/**", True, True, False),
    ("*/**", "a", True, True, False),
    ("ab/**", "ab", True, True, False),
    ("ab/*", "ab", False, False, False),
    ("**/a", "a", True, True, False),
    ("ab$*", "ab", True, True, False),
    ("a$*b", "ab", True, True, False),
    ("ab$*cd", "abxxcxxcd", True, True, False),
    ("ab$*cd", "abxxcxxcdx", False, False, False),
    ("ab$*c$*d", "abxxcxxd", True, True, False),
    ("**/xyz", "a/b/xyz/d/e/f/xyz", True, True, False),
    ("**/xyz$*xyz", "a/b/xyz/d/e/f/xyz", False, False, False),
    ("a/**/c/**/e", "a/c/e", True, True, False),
    ("a/*/c/*/e", "a/c/e", False, False, False),
    ("a/**/c/*/e/*", "a/b/b/b/c/d/d/c/d/e/f", True, True, False),
    ("a/**/c/*/e/*", "a/b/b/b/c/d/d/c/d/d/e/f", False, False, False),
    ("a/**/b", "a/**/c/b", True, True, False),
    ("x/*", "x/abc$*", True, True, False),
    ("x/$*abc", "x/abc$*", True, False, False),
    ("x/a$*", "x/abc$*", True, True, False),
    ("x/c$*", "x/abc$*", False, False, False),
    ("x/$*c$*", "x/abc$*", True, True, False),
    ("x/$*d", "x/$*e", False, False, False),
    ("x/a$*d$*e", "x/a$*c$*e", True, False, False),
    ("x/a$*e", "x/a$*d$*e", True, True, False),
    ("x/a$*d$*e", "x/ade", True, True, False),
    ("a$*", "$*b", True, False, False),
    ("$*a", "a$*a", True, True, False),
    ("**", "@a", False, False, False),
    ("*", "@a", False, False, False),
    ("a$*", "@a", False, False, False),
    ("a/**", "a/@b/c", False, False, False),
    ("@a", "@ab", False, False, False),
    ("@a", "@a/**", True, False, True),
    ("@a", "@a/*", False, False, False),
    ("@a", "@a/*/**", False, False, False),
    ("@a", "@a$*/**", False, False, False),
    ("@a", "**/@a", True, False, True),
    ("@a/*", "@a/@b", False, False, False),
    ("@a/**", "@a/@b", False, False, False),
    ("@a/@b/**", "@a/@b", True, True, False),
    ("@a/**/@b", "@a/@b", True, True, False),
    ("@a/**/@c/@b", "@a/@c/**/@b", True, False, False),
    ("@a/**/@b", "@a/**/@c/**/@b", False, False, False),
    ("@a/**/@c/**/e", "@a/b/b/b/@c/d/d/d/e", True, True, False),
    ("@a/**/c/**/e", "@a/@b/b/b/c/d/d/d/e", False, False, False),
]

CHUNKS = ["a", "b", "ab", "*", "**", "a$*", "$*b", "$*a$*", "a$*b", "@a", "@b", "@a$*", "$*@a"]


def random_pair(random: Random) -> tuple[str, str]:
    """Two expressions; the second is the first with a few chunks changed, half of the time."""
    a = random.choices(CHUNKS, k=random.randint(1, 5))
    if random.random() < 0.5:
        b = random.choices(CHUNKS, k=random.randint(1, 5))
    else:
        b = a.copy()
        for _ in range(random.randint(0, 2)):
            at = random.randrange(len(b) + 1)
            b[at : at + random.randint(0, 1)] = random.choices(CHUNKS, k=random.randint(0, 2))
    return canonize("/".join(a)), canonize("/".join(b or ["a"]))


key_exprs = st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=6).map("/".join).map(canonize)

no_deadline = settings(deadline=None)
"""No test depends on how fast the machine is."""
