"""The wording of docstrings, comments, messages and pages: see CONTRIBUTING.md, "How words look".

`python tests/support/words.py PATH ...` prints the findings.
"""

from pathlib import Path

import pytest

from tests.support.words import ROOT, RULES, Rule, findings, scope

FILES = {path.relative_to(ROOT).as_posix(): path for path in scope()}


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_words_of_a_file(name: str) -> None:
    assert not (found := findings(FILES[name])), "\n".join(["", *map(str, found)])


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('"""Return the next batch."""', []),
        ('"""What is next."""', ["docstring without a subject"]),
        ('"""The same as bytes."""', ["docstring without a subject"]),
        ('def f():\n    """Those of `key`."""', ["docstring without a subject"]),
        ('x: int = 1\n"Whoever waits for it."', ["docstring without a subject", "whoever"]),
        ("# for what came on a link", ["what came"]),
        ("# the sample that came on a link", []),
        ("raise ValueError(f'{key} is no key expression')", ["is no"]),
        ("raise ValueError('there is no key expression')", []),
        ("raise ValueError('the key is no longer declared')", []),
        ('"""Say so if there\n    is no key."""', []),
        ("# somebody waits, or nobody", ["nobody", "somebody"]),
        ("nobody = somebody(nobody)", []),
        ("# for those that wait", ["those that"]),
        ("print('one a line')", ["a for per"]),
        ("print('one per line, one at a time, each has a thread')", []),
        ("# a row a sample, 7 bits a byte", ["a for per", "a for per"]),
        ("# 3,000 rows a second", ["a for per"]),
        ("# started anew", ["anew"]),
        ("# whom to dial", ["dial"]),
        ("LIMIT = 3  # of waiting for room", ["comment that continues a name"]),
        ("LIMIT = (\n    3\n)  # between two lines", ["comment that continues a name"]),
        ("LIMIT = 3  # Upper bound on a wait.", []),
        ("limit = 3  # of waiting for room", []),
        ("for one in (1, 2):\n    pass", ["loop variable one"]),
        ("x = [one for one in (1, 2)]", ["loop variable one"]),
        ("x = {a: one for a, one in ()}", ["loop variable one"]),
    ],
)
def test_the_rules_for_python(text: str, rules: list[str]) -> None:
    found = findings(Path("made_up.py"), text + "\n")
    assert sorted(finding.rule.name for finding in found) == sorted(rules)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("A page.\n\nFor those\nthat read it.", [3]),
        ("A page with `those that` in code.", []),
        ("```text\nthose that\n```\n\nand those that", [5]),
        ("What a page may start with.", []),
    ],
)
def test_the_rules_for_pages(text: str, lines: list[int]) -> None:
    assert [finding.line for finding in findings(Path("made_up.md"), text)] == lines


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_finding_says_what_to_write(rule: Rule) -> None:
    found = findings(Path("made_up.py"), EXAMPLE)
    (finding,) = (finding for finding in found if finding.rule is rule)
    assert finding.rule.instead in str(finding)
    assert str(finding).startswith("made_up.py:")


EXAMPLE = '''
"""What came anew to whoever dials; somebody, nobody, those that.

It is no key, one a line.
"""
LIMIT = 1  # of it
for one in ():
    pass
'''
