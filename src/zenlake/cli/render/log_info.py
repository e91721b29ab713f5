"""The facts of `zenlake log info`: partitions from their tables of blocks, and keys.

Knows what is counted and how it is printed. Does not know options.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenlake.cli.printing import properties_table
from zenlake.cli.quantities import format_duration, format_size, format_time
from zenlake.cli.render.text import escape
from zenlake.quantities import NANOS, counted

if TYPE_CHECKING:
    from rich.table import Table

    from zenlake.log.read.log import Log

TOP_KEYS = 20
COUNTED_SAMPLES = 5_000_000  # Largest log whose keys are counted without --keys.
TORN = "torn"

Facts = dict[str, Any]


def collect_facts(log: "Log", path: Path, *, keys: bool) -> Facts:
    """Return the facts by their names in --json; keys are counted with `keys`, or if cheap."""
    partitions = [_describe_partition(log, path, number) for number in log.partitions()]
    samples = sum(partition["samples"] for partition in partitions)
    found = _count_keys(log, partitions) if keys or samples <= COUNTED_SAMPLES else None
    return {
        "log": str(path),
        "id": log.id,
        "samples": samples,
        "bytes": sum(partition["bytes"] for partition in partitions),
        "partitions": partitions,
        "distinct_keys": None if found is None else len(found),
        "keys": None if found is None else dict(found.most_common(TOP_KEYS)),
    }


def _describe_partition(log: "Log", path: Path, number: int) -> Facts:
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


def _count_keys(log: "Log", partitions: list[Facts]) -> Counter[str]:
    """Return the number of samples per key, damaged blocks left out."""
    import numpy as np

    from zenlake.log.read.reader import Reader

    found: Counter[str] = Counter()
    for partition in partitions:
        reader = Reader(log, partition["partition"])
        for batch in reader.batches(columns=["key"], on_damage="skip"):
            column = batch.column(0)
            texts = column.dictionary.to_pylist()
            counts = np.bincount(column.indices.to_numpy(zero_copy_only=False)).tolist()
            found.update({text: n for text, n in zip(texts, counts, strict=False) if n})
    return found


def build_table(facts: Facts) -> "Table":
    """Return the table for people."""
    table = properties_table([("log", escape(facts["log"])), ("id", facts["id"])])
    for partition in facts["partitions"]:
        table.add_section()
        for name, text in _partition_rows(partition):
            table.add_row(name, text)
    table.add_section()
    for name, text in _key_rows(facts):
        table.add_row(name, text)
    return table


def _partition_rows(partition: Facts) -> list[tuple[str, str]]:
    size, raw = partition["bytes"], partition["raw_bytes"]
    codecs = ", ".join(f"{count:,} {name}" for name, count in partition["codecs"].items()) or "none"
    rows = [
        (f"partition {partition['partition']}", partition["state"]),
        (
            "offsets",
            f"{partition['first']:,} to {partition['next'] - 1:,}"
            if partition["samples"]
            else "none",
        ),
        ("samples", f"{partition['samples']:,}"),
        ("received", _format_times(partition)),
        ("size", f"{format_size(size)} in {counted(partition['segments'], 'segment')}"),
        ("blocks", f"{partition['blocks']:,}: {codecs}"),
        ("packed to", f"{100 * size / raw:.0f} % of {format_size(raw)}" if raw else "nothing"),
        ("records of loss", f"{partition['losses']:,}"),
    ]
    if partition["damaged"]:
        rows.append(
            ("damaged", f"{counted(partition['damaged'], 'place')}: zenlake log verify names them")
        )
    if partition["torn_files"]:
        torn_size = format_size(partition["torn_bytes"])
        rows.append(("torn", f"{counted(partition['torn_files'], 'file')}, {torn_size}"))
    return rows


def _format_times(partition: Facts) -> str:
    first, last = partition["first_time"], partition["last_time"]
    if first is None:
        return "never"
    seconds = (last - first) / NANOS
    return f"{format_time(first)} to {format_time(last)} ({format_duration(seconds)})"


def _key_rows(facts: Facts) -> list[tuple[str, str]]:
    if facts["keys"] is None:
        return [("keys", "not counted, as there are many samples: --keys counts them")]
    more = facts["distinct_keys"] - len(facts["keys"])
    rows = [("keys", f"{facts['distinct_keys']:,}")]
    rows += [(f"{count:,}", escape(key)) for key, count in facts["keys"].items()]
    return rows + ([("", f"and {more:,} more")] if more else [])
