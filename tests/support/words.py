"""Habits of wording that a pattern can find, each with its plain form.

Reads docstrings, comments, string literals and loop variables of Python files, and the prose of
Markdown pages. As a script it prints the findings of files and folders:

    python tests/support/words.py src/zenlake/api README.md
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

DOCSTRING = "docstring"
COMMENT = "comment"
CONSTANT = "comment of a constant"
STRING = "string"
PAGE = "page"
LOOP = "loop variable"
TEXT = frozenset({DOCSTRING, COMMENT, CONSTANT, STRING, PAGE})


@dataclass(frozen=True, slots=True)
class Rule:
    """A habit: a pattern, the kinds of text it is looked for in, and what to write instead."""

    name: str
    kinds: frozenset[str]
    pattern: re.Pattern[str]
    instead: str


def rule(name: str, kinds: Iterable[str], pattern: str, instead: str) -> Rule:
    """Make a rule; a space in `pattern` stands for any white space, so also for a line's end."""
    compiled = re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)
    return Rule(name, frozenset(kinds), compiled, instead)


# Nouns that stand behind "a" where "per" is meant.
_UNITS = (
    "batch|block|byte|call|connection|core|cycle|day|file|flow|frame|get|hour|key|lane|line|link"
    "|log|measurement|message|minute|name|node|packet|partition|peer|process|publisher|put|query"
    "|record|reply|request|row|sample|segment|session|side|source|span|stream|table|task|test"
    "|thread|topic|turn"
)
_COUNTED = "column|commit|counter|entry|file|line|number|object|partition|row|table|thread"
_NOT_COUNTED = (
    "and|as|at|by|for|from|has|have|if|in|is|of|on|or|out|takes|that|to|until|was|when|where|which"
    "|while|who|whose|with"
)
_PREPOSITIONS = (
    "after|and|as|at|before|beyond|between|but|by|for|from|in|of|on|or|so|than|that|then|to|under"
    "|until|what|when|where|which|while|who|whose|with|within|without"
)

RULES = (
    rule(
        "what came",
        TEXT,
        r"\bwhat (?:has |have |had |just )?(?:come|came|comes)\b",
        "name the thing: the sample, message, frame, byte that was received",
    ),
    rule(
        "docstring without a subject",
        {DOCSTRING},
        r"\A(?:What|The same|Whoever|Whom|Those)\b",
        "start with a verb (Return, Encode, Pause), or for a class or attribute with its noun",
    ),
    rule("whoever", TEXT, r"\b(?:who|whom)ever\b", "name the actor: caller, peer, reader, client"),
    rule(
        "somebody",
        TEXT,
        r"\bsome(?:body|one)\b",
        "name the actor: another thread, a peer, a subscriber, the operator",
    ),
    rule(
        "nobody",
        TEXT,
        r"\bnobody\b",
        "name the actor: no subscriber, no other thread, no node",
    ),
    rule(
        "a for per",
        TEXT,
        rf"\bone an? (?:{_UNITS}|second)\b"
        rf"|\b(?:one|two|three|four|\d[\d,.]*) (?!(?:{_NOT_COUNTED})\b)[\w-]+ an? (?:{_UNITS})\b"
        rf"|\ban? (?:{_COUNTED}) an? (?:{_UNITS})\b"
        r"|\b(?:bytes|calls|frames|messages|puts|queries|replies|rows|samples) a second\b",
        "write per: one per line, one row per sample, replies per second",
    ),
    rule(
        "is no",
        TEXT,
        r"(?<!there\s)\b(?:is|are|was|were) no"
        r" (?!longer\b|better\b|worse\b|larger\b|smaller\b|faster\b|slower\b|newer\b|older\b)\w+",
        "write is not a valid ..., is not a ...; or there is no ...",
    ),
    rule(
        "those that",
        TEXT,
        r"\bthose (?:that|who|which|whose|there)\b",
        "repeat the noun: the sinks that, peers that",
    ),
    rule("anew", TEXT, r"\banew\b", "write again, from the start, or recreated"),
    rule("dial", TEXT, r"\b(?:re)?dial(?:s|led|ling|ed|ing)?\b", "write connect, as Zenoh does"),
    rule(
        "comment that continues a name",
        {CONSTANT},
        rf"\A(?-i:{_PREPOSITIONS})\b",
        "write a phrase of its own: Upper bound on ..., Seconds a ... may take",
    ),
    rule("loop variable one", {LOOP}, r"\Aone\Z", "name the loop variable after its items"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a rule is broken."""

    path: Path
    line: int
    text: str
    rule: Rule

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        text = " ".join(self.text.split())
        return f"{path}:{self.line}: {text!r}: {self.rule.name}; {self.rule.instead}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of one kind, and the line that it starts on."""

    kind: str
    line: int
    text: str

    @classmethod
    def of(cls, kind: str, line: int, text: str) -> "Piece":
        """Make a piece of `text` without indentation, so that a line's end is one character."""
        return cls(kind, line, re.sub(r"[ \t]*\n[ \t]*", "\n", text))


def findings(path: Path, text: str | None = None) -> list[Finding]:
    """Return what the rules find in the Python file or Markdown page `path`."""
    text = path.read_text() if text is None else text
    pieces = _page(text) if path.suffix == ".md" else _python(text)
    found = [
        Finding(
            path, piece.line + piece.text.count("\n", 0, match.start()), _around(piece, match), rule
        )
        for piece in pieces
        for rule in RULES
        if piece.kind in rule.kinds
        for match in rule.pattern.finditer(piece.text)
    ]
    return sorted(found, key=lambda finding: (finding.line, finding.rule.name))


def _around(piece: Piece, match: re.Match[str]) -> str:
    start = piece.text.rfind(" ", 0, max(0, match.start() - 20)) + 1
    return piece.text[start : match.end() + 25]


def _page(text: str) -> Iterator[Piece]:
    """Yield the prose of a Markdown page; code is blanked, and lines keep their numbers."""
    for code in (r"^```.*?^```$", r"`[^`\n]+`", r"<!--.*?-->"):
        blank = re.compile(code, re.MULTILINE | re.DOTALL)
        text = blank.sub(lambda match: re.sub(r"[^\n]", "¤", match[0]), text)
    yield Piece.of(PAGE, 1, text)


def _python(text: str) -> Iterator[Piece]:
    """Yield the docstrings, strings, loop variables and comments of a Python file."""
    tree = ast.parse(text)
    constants = _constant_lines(tree)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(node.value)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    yield Piece.of(LOOP, name.lineno, name.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node in docstrings:
                yield Piece.of(DOCSTRING, node.lineno, node.value)
            elif " " in node.value:
                yield Piece.of(STRING, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            alone = token.line.lstrip().startswith("#")
            kind = CONSTANT if line in constants and not alone else COMMENT
            yield Piece.of(kind, line, token.string.lstrip("#: "))


def _constant_lines(tree: ast.AST) -> set[int]:
    """Lines on which an assignment to a name in capitals ends."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(name, ast.Name) and name.id.isupper() for name in targets):
                lines.add(node.end_lineno or node.lineno)
    return lines


def scope() -> list[Path]:
    """Return the files that the rules hold for: the sources and the pages."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pages += [ROOT / "examples" / "README.md", ROOT / "deploy" / "README.md"]
    return sorted([*(ROOT / "src").rglob("*.py"), *pages])


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted([*path.rglob("*.py"), *path.rglob("*.md")])
        else:
            yield path


def main(arguments: list[str]) -> int:
    """Print the findings of the files and folders in `arguments`; of all in scope without any."""
    count = 0
    for path in _files(arguments) if arguments else scope():
        for finding in findings(path.resolve()):
            print(finding)  # noqa: T201
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
