"""The files of `transformations/`, loaded one by one: a file that fails takes only itself down.

Knows which files a lake has and when they change. Does not start what they declare.
"""

import importlib.util
import traceback
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zenlake.errors import ZError
from zenlake.lake.pipeline.flows import Declarations, Flow, collect
from zenlake.lake.pipeline.progress import TABLES_FLOW
from zenlake.lake.pipeline.spark_session import extract_reason
from zenlake.lake.project import Project

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
MAX_FILES = 1000  # Upper bound on the files of a lake.

Signature = tuple[int, int]
"Time of the last change, and size, of a file."


@dataclass
class LoadedFile:
    """Declarations of a file, or the reason why it does not load."""

    signature: Signature
    declarations: Declarations
    error: str | None = None


@dataclass
class Transformations:
    """Files of a lake as they were loaded last, by their path below the lake's folder."""

    project: Project
    spark: Any
    files: dict[str, LoadedFile] = field(default_factory=dict)

    def reload(self, failed: frozenset[str] = frozenset()) -> list[str]:
        """Load new and changed files and those in `failed`; return the files that have changed."""
        found = {
            str(path.relative_to(self.project.home)): path for path in _list_files(self.project)
        }
        changed = [name for name in self.files if name not in found]
        for name in changed:
            del self.files[name]
        for name, path in found.items():
            signature = _signature(path)
            loaded = self.files.get(name)
            if loaded is None or loaded.signature != signature or name in failed:
                self.files[name] = self._load(path, signature)
                changed.append(name)
        return changed

    @property
    def failures(self) -> dict[str, str]:
        """Files that did not load, with the reasons."""
        return {name: file.error for name, file in self.files.items() if file.error is not None}

    def flows(self) -> dict[str, Flow]:
        """Return all declared flows by name, that of the built-in tables first.

        ZError: two files fill one table, or declare flows of one name.
        """
        tables = [
            table
            for file in self.files.values()
            for table in file.declarations.tables
            if file.error is None
        ]
        flows = {TABLES_FLOW: Flow(TABLES_FLOW, tuple(dict.fromkeys(tables)))} if tables else {}
        filled = dict.fromkeys(tables, TABLES_FLOW)
        for name, file in self.files.items():
            for flow in file.declarations.flows.values() if file.error is None else ():
                if flow.name in flows:
                    raise ZError(f"{name}: there are two flows {flow.name!r}: rename one")
                for table in flow.into:
                    if table in filled:
                        raise ZError(
                            f"{name}: table {table!r} is filled by flow {filled[table]!r} and by "
                            f"flow {flow.name!r}: take it out of one of them"
                        )
                    filled[table] = flow.name
                flows[flow.name] = flow
        return flows

    def _load(self, path: Path, signature: Signature) -> LoadedFile:
        home = self.project.home
        module_spec = importlib.util.spec_from_file_location(path.stem, path)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        vars(module)["spark"] = self.spark  # As Spark's own command does.
        error = None
        with collect(self.project) as declared, chdir(home):
            try:
                module_spec.loader.exec_module(module)
            except (Exception, SystemExit) as raised:  # noqa: BLE001 - the user's code
                error = describe_error(raised, home)
        return LoadedFile(signature, declared, error)


def describe_error(error: BaseException, home: Path) -> str:
    """Return the reason of an error with the last line of the lake's own files that it passed."""
    reason = str(error) if isinstance(error, ZError) else f"{type(error).__name__}: {error}"
    where = [
        f"{Path(frame.f_code.co_filename).relative_to(home)}, line {line}: "
        for frame, line in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).is_relative_to(home)
    ]
    return (where[-1] if where else "") + extract_reason(reason)


# ---- the specification


class Specification(NamedTuple):
    """`spark-pipeline.yml`, as far as a lake uses it."""

    name: str
    storage: str
    "Place of checkpoints, as a URI."
    includes: tuple[str, ...]
    "Patterns of the files with transformations."
    configuration: dict[str, str]
    "Settings of Spark."


def find_spec(project: Project) -> Path:
    """Return the file that describes the pipeline to Spark."""
    for name in SPECS:
        if (project.home / name).is_file():
            return project.home / name
    raise ZError(
        f"{project.home} has no {SPECS[0]}: make a lake elsewhere (zenlake lake init) and copy its"
    )


def load_spec(project: Project) -> Specification:
    """Read the pipeline specification. ZError: it is missing, or not valid.

    Spark's own reader is not used: it cannot be imported once a classic session runs.
    """
    import yaml

    path = find_spec(project)
    try:
        raw = yaml.safe_load(path.read_text())
        return Specification(
            str(raw["name"]),
            str(raw["storage"]),
            tuple(str(library["glob"]["include"]) for library in raw.get("libraries", [])),
            {str(name): str(value) for name, value in raw.get("configuration", {}).items()},
        )
    except KeyError as error:
        raise ZError(f"{path}: {error.args[0]!r} is missing") from None
    except (yaml.YAMLError, OSError, AttributeError, TypeError, ValueError) as error:
        raise ZError(f"{path}: {' '.join(str(error).split())}") from None


def _list_files(project: Project) -> Iterator[Path]:
    """Yield the Python files that the specification includes. ZError: there are too many."""
    found: set[Path] = set()
    for include in load_spec(project).includes:
        # Spark's `**` at the end means all files below; that of pathlib means folders.
        pattern = include + ("/*" if include.endswith("**") else "")
        found |= {
            path
            for path in project.home.glob(pattern)
            if path.suffix == ".py" and "__pycache__" not in path.parts
        }
    if len(found) > MAX_FILES:
        raise ZError(f"{find_spec(project)} includes {len(found)} files: {MAX_FILES} at most")
    yield from sorted(found)


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
