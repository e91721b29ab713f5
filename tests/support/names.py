"""Names of files and code that a Markdown page mentions, checked against the repository.

The index is made from the syntax trees of the sources; nothing of the project is imported.
"""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "zenlake"
FOLDERS = ("src", "tests", "docs", "examples", "bench", "demo", "deploy")

# Instances that the pages write in lower case, and the class of the session API that each is of.
INSTANCES = {
    "session": "Session",
    "publisher": "Publisher",
    "subscriber": "Subscriber",
    "querier": "Querier",
    "queryable": "Queryable",
    "query": "Query",
    "sample": "Sample",
    "reply": "Reply",
    "recorder": "Recorder",
}
# Modules whose names a page for users may mention without saying where they are.
PUBLIC = (
    "__init__.py",
    "api",
    "errors.py",
    "ext",
    "aio",
    "handlers.py",
    "shm.py",
    "router",
    "router.py",
    "log",
    "capture",
    "spark",
    "lake",
    "sim",
)
USER_PAGES = {
    "README.md",
    "api.md",
    "captures.md",
    "cluster.md",
    "decoders.md",
    "lake.md",
    "recording.md",
    "report.md",
    "serve.md",
    "spark.md",
    "tools.md",
}
# Names of other projects, of the operating system, and of a user's own files.
FOREIGN = {
    *dir(builtins),
    *("DataFrame", "RecordBatch", "SparkSession", "Trigger", "dropDuplicatesWithinWatermark"),
    *("NaN", "DynamicUser", "Timeout", "TimeoutStopSec", "_spark_metadata", "autocanonize", "rand"),
    "try_parse_json",
    *("NUMBA_BOUNDSCHECK", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "SPARK_API_MODE"),
}
USER_FILES = {
    "decoders.py",
    "state/",
    "tables/",
    "torn/",
    "tls/",
    "udp/",
    "unixsock-stream/",
    "ws/",
}
SETTINGS = re.compile(r"spark\.(driver|executor|python|sql|task|ui)\..+|org\.apache\..+")
DATA_FILE = re.compile(
    r"\w+\.(toml|json5?|ya?ml|html|log|desc|arrow|parquet|mcap|pcap(ng)?|lock|ipynb)"
)

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|md)|(?:[\w.-]+/)+")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
CAMEL = re.compile(r"[A-Z][A-Z0-9]*[a-z]\w*")
SNAKE = re.compile(r"_\w*[a-z]\w*|[a-z]\w*_\w+|[A-Z][A-Z0-9]*_[A-Z0-9_]+")
WORD = re.compile(r"[A-Za-z_]\w*")
# Text between a file and a name that belongs to it: `file.py` `name`, (`file.py`, `name`).
BESIDE = re.compile(r"(?:'s)?[ \n]\(?|, ")
LIST = re.compile(r", ")


class Source:
    """Names that one Python file defines, and the members of each of its classes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self.own: set[str] = set()  # without what is imported, and without parameters
        self.uses: set[str] = set()
        self.members: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        self._walk(ast.parse(path.read_text()), None)

    def _walk(self, parent: ast.AST, owner: str | None) -> None:
        for node in ast.iter_child_nodes(parent):
            inner = owner
            if isinstance(node, ast.ClassDef):
                self._define(node.name, owner)
                self.own.add(node.name)
                self.bases[node.name] |= {
                    name for base in node.bases for name in WORD.findall(ast.unparse(base))
                }
                inner = node.name
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._define(node.name, owner)
                self.own.add(node.name)
            elif isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Store):
                    self._define(node.id, owner)
                    self.own.add(node.id)
                self.uses.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store):
                    self._define(node.attr, owner)
                self.uses.add(node.attr)
            elif isinstance(node, ast.alias):
                self._define((node.asname or node.name).rpartition(".")[2], owner)
            elif isinstance(node, ast.arg):
                self._define(node.arg, owner)
            elif isinstance(node, ast.keyword) and node.arg:
                self.uses.add(node.arg)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                if ast.unparse(node.value).startswith("(auto(), "):  # a member of a StrEnum
                    self.uses.add(ast.unparse(node.targets[0]).lower())
            elif isinstance(node, ast.Constant) and not isinstance(parent, ast.Expr):
                words = WORD.findall(node.value) if isinstance(node.value, str) else []
                self.uses.update(words)  # options, columns, names in __slots__
                if owner and len(words) == 1:
                    self.members[owner].update(words)
            self._walk(node, inner)

    def _define(self, name: str, owner: str | None) -> None:
        self.names.add(name)
        self.uses.add(name)
        if owner:
            self.members[owner].add(name)


class Index:
    """Every file of the repository, and the names in its Python files."""

    def __init__(self) -> None:
        self.files = {
            path.relative_to(ROOT).as_posix()
            for folder in FOLDERS
            for path in (ROOT / folder).rglob("*")
            if "__pycache__" not in path.parts
        } | {path.name for path in ROOT.glob("*.*")}
        self.folders = {file for file in self.files if (ROOT / file).is_dir()} | set(FOLDERS)
        self.sources = {
            file: Source(ROOT / file)
            for file in self.files
            if file.endswith(".py") and (ROOT / file).is_file()
        }
        product = [source for file, source in self.sources.items() if file.startswith("src/")]
        self.product = {name for source in product for name in source.uses}
        self.anywhere = {name for source in self.sources.values() for name in source.names}
        self.anywhere |= self.product
        self.anywhere |= {Path(file).stem for file in self.files}
        self.anywhere |= {
            word
            for file in self.files
            if file.startswith("src/") and file.endswith((".json", ".toml", ".yml"))
            for word in WORD.findall((ROOT / file).read_text())
        }
        public = [PACKAGE / name for name in PUBLIC]
        self.public = {
            name
            for source in product
            if any(source.path == path or path in source.path.parents for path in public)
            for name in source.own
        }

    def find(self, name: str) -> list[str]:
        """Files and folders that `name` may stand for: as they are called, or by their ends."""
        name = name.rstrip("/")
        ends = "/" + name
        exact = [name] if name in self.files or name in self.folders else []
        below = f"src/zenlake/{name}"
        if below in self.files:
            exact.append(below)
        return exact or [file for file in self.files if file.endswith(ends)]

    def classes(self, name: str) -> list[Source]:
        return [source for source in self.sources.values() if name in source.members]

    def members(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Members of all classes called `name`, those of their bases included."""
        found: set[str] = set()
        for source in self.classes(name):
            found |= source.members[name]
            for base in source.bases[name] - seen - {name}:
                found |= self.members(base, seen | {name})
        return found

    def module(self, parts: list[str]) -> list[str]:
        """Python files and packages that the dotted name `parts` may stand for."""
        path = "/".join(parts)
        ends = [f"src/{path}", f"src/zenlake/{path}", path]
        for end in ends:
            for file in (f"{end}.py", f"{end}/__init__.py"):
                if file in self.sources:
                    return [file]
        return [file for file in self.sources if file.endswith(f"/{path}.py")]


@cache
def index() -> Index:
    return Index()


class Page:
    """The mistakes of one page: names that it mentions and that do not exist."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self._name = path.name
        self._user = path.name in USER_PAGES
        text = path.read_text() if text is None else text
        self._text = FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
        self._index = index()

    def mistakes(self) -> Iterator[str]:
        """Give one line for each name that does not exist."""
        near: list[str] = []  # files that the span before this one names
        end = 0
        for span in SPAN.finditer(self._text):
            between = self._text[end : span.start()]
            end = span.end()
            name = span[1].strip()
            line = self._text.count("\n", 0, span.start()) + 1
            if PATH.fullmatch(name):
                near = self._index.find(name)
                wrong = None if near or name in USER_FILES else "there is no such file or folder"
                symbol = self._symbol_before(span.start())
                if wrong is None and symbol and near:
                    wrong = self._undefined(symbol, near)
            else:
                name = name.removesuffix("()").partition("(")[0]
                near = near if BESIDE.fullmatch(between) or LIST.fullmatch(between) else []
                files = [file for file in near if file in self._index.sources]
                beside = BESIDE.fullmatch(between) and WORD.match(name)
                if files and beside and re.fullmatch(r"[\w.]+", name):
                    wrong = self._undefined(name, files)
                else:
                    wrong = self._unknown(name)
            if wrong:
                yield f"{self._name}:{line}: `{name}`: {wrong}"

    def _symbol_before(self, start: int) -> str | None:
        """The name in ``Name` (`file.py`)``, which stands before its file."""
        found = re.search(r"`([A-Za-z_][\w.]*)(?:\(\))?`[ \n]\($", self._text[:start])
        name = found[1] if found else None
        return name if name and (CAMEL.match(name) or SNAKE.fullmatch(name)) else None

    def _undefined(self, name: str, files: list[str]) -> str | None:
        """Say that none of `files` defines `name`."""
        first, _, rest = name.partition(".")
        for file in files:
            source = self._index.sources.get(file)
            if source is None or first in FOREIGN:
                return None
            member = rest.partition(".")[0]
            if first in source.members and member:
                if member in self._index.members(first):
                    return None
            elif first in source.names and (not member or member in self._index.product):
                return None
        return f"not defined in {', '.join(files)}"

    def _unknown(self, name: str) -> str | None:
        """Say that the repository has no such name."""
        if name in FOREIGN or not re.fullmatch(r"[\w.]+", name):
            return None
        if SETTINGS.fullmatch(name) or DATA_FILE.fullmatch(name):
            return None
        if DOTTED.fullmatch(name):
            return self._unknown_dotted(name.split("."))
        if CAMEL.fullmatch(name) and not name.isupper():
            if self._user and name in self._index.product - self._index.public:
                return "is not a name of the public modules; name its file"
            return None if name in self._index.anywhere else "no class or function of that name"
        if SNAKE.fullmatch(name) and name not in self._index.anywhere:
            return "no definition, option or column of that name"
        return None

    def _unknown_dotted(self, parts: list[str]) -> str | None:
        first, last = parts[0], parts[-1]
        if first in INSTANCES:
            first, parts = INSTANCES[first], [INSTANCES[first], *parts[1:]]
            classes = {
                name
                for file, source in self._index.sources.items()
                if first in source.members and re.match(r"src/zenlake/(api|log)/", file)
                for name in self._index_members(source, first)
            }
            return None if parts[1] in classes else f"{first} has no {parts[1]}"
        if first in FOREIGN:
            return None
        if CAMEL.fullmatch(first):
            if not self._index.classes(first):
                return f"no class {first}"
            if parts[1] not in self._index.members(first):
                return f"{first} has no {parts[1]}"
            return None
        if first == "zenlake" or (PACKAGE / first).is_dir() or last.isupper():
            return self._unknown_path(parts)
        if last in self._index.anywhere:
            return None
        return f"nothing is called {last}"

    def _index_members(self, source: Source, name: str) -> set[str]:
        found = set(source.members[name])
        for base in source.bases[name] - {name}:
            found |= self._index.members(base)
        return found

    def _unknown_path(self, parts: list[str]) -> str | None:
        """Follow `zenlake.package.module.Class.member` as far as there are files for it."""
        for split in range(len(parts), 0, -1):
            files = self._index.module(parts[:split])
            if not files:
                continue
            rest = parts[split:]
            if not rest:
                return None
            names = {name for file in files for name in self._index.sources[file].uses}
            if parts[:split] == ["zenlake"]:
                names |= self._index.public  # the package gives out the names of the API
            if rest[0] not in names:
                return f"{'.'.join(parts[:split])} has no {rest[0]}"
            if len(rest) > 1 and rest[1] not in self._index.members(rest[0]):
                return f"{rest[0]} has no {rest[1]}"
            return None
        return "no such module"
