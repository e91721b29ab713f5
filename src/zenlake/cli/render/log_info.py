"""What a log holds: its partitions from their tables of blocks, and its keys.

Knows what is counted and how that is shown. Does not know options.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenlake.cli.quantities import counted, duration_shown, size_shown, time_shown
from zenlake.cli.render.text import escape
from zenlake.quantities import NANOS

if TYPE_CHECKING:
    from rich.table import Table

    from zenlake.log.read.log import Log

TOP_KEYS = 20
COUNTED_SAMPLES = 5_000_000  # up to so many are read to count their keys, without being asked to
TORN = "torn"

Facts = dict[str, Any]


def facts_of(log: "Log", path: Path, *, keys: bool) -> Facts:
    """By the names that --json has. Keys are counted if that is asked for, or cheap."""
    partitions = [_partition(log, path, number) for number in log.partitions()]
    samples = sum(one["samples"] for one in partitions)
    counted = _keys(log, partitions) if keys or samples <= COUNTED_SAMPLES else None
    return {
        "log": str(path),
        "id": log.id,
        "samples": samples,
        "bytes": sum(one["bytes"] for one in partitions),
        "partitions": partitions,
        "distinct_keys": None if counted is None else len(counted),
        "keys": None if counted is None else dict(counted.most_common(TOP_KEYS)),
    }


def _partition(log: "Log", path: Path, number: int) -> Facts:
    import numpy as np

    from zenlake.log.format import CODECS, WRITING

    mark, blocks = log.mark(number), log.blocks(number)
    timed = blocks[blocks["samples"] > 0]
    codecs = np.bincount(blocks["codec"], minlength=len(CODECS)).tolist()
    torn = [file.stat().st_size for file in _torn_files(path / str(number) / TORN)]
    return {
        "partition": number,
        "state": "written now" if mark.state == WRITING else "sealed",
        "first": log.first(number),
        "next": mark.offset,
        "first_time": int(timed["first_time"].min()) if len(timed) else None,
        "last_time": int(timed["last_time"].max()) if len(timed) else None,
        "samples": int(blocks["samples"].sum(dtype=np.int64)),
        "bytes": int(blocks["length"].sum(dtype=np.int64)),
        "raw_bytes": int(blocks["raw"].sum(dtype=np.int64)),
        "segments": len(np.unique(blocks["segment"])),
        "blocks": len(blocks),
        "codecs": {name: count for name, count in zip(CODECS, codecs, strict=True) if count},
        "losses": int(blocks["losses"].sum(dtype=np.int64)),
        "damaged": len(log.damage(number)),
        "torn_files": len(torn),
        "torn_bytes": sum(torn),
    }


def _torn_files(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []


def _keys(log: "Log", partitions: list[Facts]) -> Counter[str]:
    """How many samples each key has; what is damaged counts for none."""
    import numpy as np

    from zenlake.log.read.reader import Reader

    found: Counter[str] = Counter()
    for one in partitions:
        reader = Reader(log, one["partition"])
        for batch in reader.batches(columns=["key"], on_damage="skip"):
            column = batch.column(0)
            texts = column.dictionary.to_pylist()
            counts = np.bincount(column.indices.to_numpy(zero_copy_only=False)).tolist()
            found.update({text: n for text, n in zip(texts, counts, strict=False) if n})
    return found


def table_of(facts: Facts) -> "Table":
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    table.add_row("log", escape(facts["log"]))
    table.add_row("id", facts["id"])
    for one in facts["partitions"]:
        table.add_section()
        for name, text in _partition_rows(one):
            table.add_row(name, text)
    table.add_section()
    for name, text in _key_rows(facts):
        table.add_row(name, text)
    return table


def _partition_rows(one: Facts) -> list[tuple[str, str]]:
    size, raw = one["bytes"], one["raw_bytes"]
    codecs = ", ".join(f"{count:,} {name}" for name, count in one["codecs"].items()) or "none"
    rows = [
        (f"partition {one['partition']}", one["state"]),
        ("offsets", f"{one['first']:,} to {one['next'] - 1:,}" if one["samples"] else "none"),
        ("samples", f"{one['samples']:,}"),
        ("received", _times(one)),
        ("size", f"{size_shown(size)} in {counted(one['segments'], 'segment')}"),
        ("blocks", f"{one['blocks']:,}: {codecs}"),
        ("packed to", f"{100 * size / raw:.0f} % of {size_shown(raw)}" if raw else "nothing"),
        ("records of loss", f"{one['losses']:,}"),
    ]
    if one["damaged"]:
        rows.append(
            ("damaged", f"{counted(one['damaged'], 'place')}: zenlake log verify names them")
        )
    if one["torn_files"]:
        rows.append(
            ("torn", f"{counted(one['torn_files'], 'file')}, {size_shown(one['torn_bytes'])}")
        )
    return rows


def _times(one: Facts) -> str:
    first, last = one["first_time"], one["last_time"]
    if first is None:
        return "never"
    seconds = (last - first) / NANOS
    return f"{time_shown(first)} to {time_shown(last)} ({duration_shown(seconds)})"


def _key_rows(facts: Facts) -> list[tuple[str, str]]:
    if facts["keys"] is None:
        return [("keys", "not counted, as there are many samples: --keys counts them")]
    more = facts["distinct_keys"] - len(facts["keys"])
    rows = [("keys", f"{facts['distinct_keys']:,}")]
    rows += [(f"{count:,}", escape(key)) for key, count in facts["keys"].items()]
    return rows + ([("", f"and {more:,} more")] if more else [])
