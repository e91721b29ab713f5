"""Scaffold of a new lake: writes the project files from the folder `template`.

Knows the questions of `zenlake lake init`. Does not run the lake.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from zenlake.errors import ZError
from zenlake.lake.project import FILE, Project

TEMPLATE = Path(__file__).parent / "template"

CONFIGURATION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # One flow at a time: each starts processes, for which Spark waits ten seconds, and two starts
    # at once can damage what Spark caches of a data source (spark/local_session.py).
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
}
"Spark settings that suit the flows of a lake on any Spark; users may change them."

RECORD = """[record]             # `zenlake lake run` records while it runs; leave this section
                     # out if another process does (zenlake record)
connect = {connect}
keys = {keys}
mode = "client"      # or "peer"
codec = "zstd"       # how the log is packed: none, lz4, zstd
partition = 0        # of the log; each recorder has its own
# config = "zenoh.json5"  # a Zenoh configuration: credentials, certificates
"""


def create_project(
    folder: Path | str, name: str, connect: Sequence[str] = (), keys: Sequence[str] = ("**",)
) -> Project:
    """Create a lake in `folder`, which records from `connect` if given.

    ZError: one of the files exists already, or a name is not valid; then nothing is written.
    """
    home = Path(folder).absolute()
    values = {
        "name": name,
        "record": _record_section(connect, keys),
        "configuration": "\n".join(
            f"  {setting}: {json.dumps(value)}" for setting, value in CONFIGURATION.items()
        ),
    }
    made = {
        home / path.relative_to(TEMPLATE): _fill_template(path, values)
        for path in sorted(TEMPLATE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    Project.parse(made[home / FILE], home / FILE)  # Raises before anything is written.
    existing = [path for path in made if path.exists()]
    if existing:
        raise ZError(f"{existing[0]} is there already: name a folder without a lake")
    try:
        for path, text in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ZError(f"the lake cannot be written: {error}") from None
    return Project.load(home)


def _record_section(connect: Sequence[str], keys: Sequence[str]) -> str:
    text = RECORD.format(
        connect=_toml_list(connect or ["tcp/127.0.0.1:7447"]), keys=_toml_list(keys)
    )
    if connect:
        return text
    return "".join(f"# {line.removeprefix('# ')}\n" for line in text.splitlines())


def _toml_list(texts: Sequence[str]) -> str:
    return json.dumps([*texts], ensure_ascii=False)


def _fill_template(path: Path, values: dict[str, str]) -> str:
    """Return a file of the template with its placeholders filled; Python files have none."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".py" else Template(text).substitute(values)
