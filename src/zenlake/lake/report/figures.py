"""Figures of a report about health and loss, by key, by source and by time.

Knows that a row of `health` is a minute of a key and a source. Does not know where tables are or
how a page looks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.report.quantiles import Floats, latency, quantiles
from zenlake.lake.report.span import MICROS, TimeSpan
from zenlake.lake.tables.reduce import (
    MAX_SN_SPAN,
    Ints,
    as_ints,
    bucket_seconds,
    flatten_histograms,
    sum_entries,
)

MAX_KEYS = 2000  # Keys that a page lists, those with the most samples first.
MAX_KEY_CHARS = 512  # Upper bound on the characters shown of a key.
MAX_ROWS = 200  # Upper bound on the rows of every other list.
TICKS = 40  # Points of the small line chart of a key.
STOPPED_INTERVALS = 5  # Mean intervals of silence after which a key counts as stopped.
STOPPED_SECONDS = 5.0  # Shortest silence of a stopped key.
STOPPED_SAMPLES = 3  # Fewest samples of a stopped key.
SHARES = (0.5, 0.99)  # Quantiles of latency.

Data = dict[str, Any]


class Health:
    """Figures computed from the rows of `health` of a time span."""

    def __init__(self, rows: pa.Table, span: TimeSpan) -> None:
        keys = rows["key"].combine_chunks().dictionary_encode()
        self._names = keys.dictionary.to_pylist()
        self._key = keys.indices.to_numpy().astype(np.int64)
        self.span = span
        self._bin = span.bin_of(as_ints(rows["minute"]))
        self._entries = flatten_histograms(rows["latency_histogram"])
        # A minute with only duplicates has no exact times: use the minute itself.
        self._first, self._last = (
            as_ints(pc.coalesce(rows[name], rows["minute"])) for name in ("first_seen", "last_seen")
        )
        own = {"key": self._key, "first": self._first, "last": self._last}
        self._rows = rows.drop_columns(["key"])
        for name, column in own.items():
            self._rows = self._rows.append_column(name, pa.array(column))
        self._sum = {name: as_ints(rows[name]) for name in ("count", "bytes", "duplicates")}
        self._missing = self._gaps()
        self.keys = self._by_key()
        by_count = np.lexsort((np.arange(len(self._names)), -self.keys["count"]))
        self.shown = by_count[:MAX_KEYS]
        self.hidden = by_count[MAX_KEYS:]

    # ---- by key

    def _by_key(self) -> dict[str, Any]:
        n = len(self._names)
        grouped = self._rows.group_by("key").aggregate(
            [
                *((name, "sum") for name in self._sum),
                *(("min_bytes", "min"), ("max_bytes", "max"), ("first", "min"), ("last", "max")),
            ]
        )
        grouped = grouped.sort_by("key").drop_columns("key")  # Row i is that of key i.
        names = (*self._sum, "min", "max", "first", "last")
        found: dict[str, Any] = dict(zip(names, map(as_ints, grouped.columns), strict=True))
        found["silence"] = self._longest_silence(n)
        found["interval"] = self._interval(found)
        keys, missing = as_ints(self._missing["key"]), as_ints(self._missing["missing"])
        found["gaps"] = np.bincount(keys, missing, n).astype(np.int64)
        found["numbered"] = np.isin(np.arange(n), keys)
        return found

    def _longest_silence(self, n: int) -> Floats:
        """Return the longest silence of each key in seconds, within and between minutes."""
        inside = self._rows["silence"].fill_null(0.0).to_numpy()
        order = np.lexsort((self._first, self._key))
        key, first, last = self._key[order], self._first[order], self._last[order]
        same = key[1:] == key[:-1]
        between = np.where(same, (first[1:] - _latest_so_far(key, last)[:-1]) / MICROS, 0.0)
        longest = np.zeros(n)
        np.maximum.at(longest, self._key, inside)
        np.maximum.at(longest, key[1:], between)
        return longest

    def _interval(self, found: dict[str, Any]) -> Floats:
        """Return the mean seconds between two samples of a sending key; nan for a single sample."""
        n, count = len(self._names), self._sum["count"]
        several = count > 1
        seconds = np.where(several, (self._last - self._first) / MICROS, 0.0)
        steps = np.bincount(self._key, np.where(several, count - 1, 0), n)
        whole = (found["last"] - found["first"]) / MICROS
        with np.errstate(invalid="ignore", divide="ignore"):
            sending = np.bincount(self._key, seconds, n) / steps
            overall = whole / np.maximum(0, found["count"] - 1)
        return np.where(steps > 0, sending, np.where(found["count"] > 1, overall, np.nan))

    def keys_shown(self, encodings: dict[str, str]) -> Data:
        """Return one list per column of the listed keys, with the samples per tick as the last."""
        chosen, found = self.shown, self.keys
        median, high = self._latency_of(chosen)
        names = [self._names[i] for i in chosen.tolist()]
        gaps = np.where(found["numbered"], found["gaps"], -1)
        return {
            "key": [shorten(name) for name in names],
            **{name: found[name][chosen].tolist() for name in ("count", "bytes", "min", "max")},
            "duplicates": found["duplicates"][chosen].tolist(),
            "gaps": [None if gap < 0 else gap for gap in gaps[chosen].tolist()],
            "first": _millis(found["first"][chosen]),
            "last": _millis(found["last"][chosen]),
            "silence": _round_all(found["silence"][chosen]),
            "interval": _round_all(found["interval"][chosen]),
            "median": median,
            "p99": high,
            "encoding": [shorten(encodings.get(name, "")) for name in names],
            "ticks": self._ticks(chosen),
        }

    def names(self, chosen: Iterable[int]) -> list[str]:
        return [self._names[i] for i in chosen]

    def _places(self, chosen: Ints) -> Ints:
        """Return the place of the key of each row among the chosen keys; -1 for other keys."""
        place: Ints = np.full(len(self._names), -1)
        place[chosen] = np.arange(len(chosen))
        return np.asarray(place[self._key])

    def _latency_of(self, chosen: Ints) -> list[list[float | None]]:
        rows, bucket, count = self._entries
        group = self._places(chosen)[rows]
        wanted = group >= 0
        return self._quantiles(group[wanted], bucket[wanted], count[wanted], len(chosen))

    def _quantiles(
        self, group: Ints, bucket: Ints, count: Ints, groups: int
    ) -> list[list[float | None]]:
        group, bucket, count = sum_entries(group, bucket, count, groups)
        return quantiles(group, bucket_seconds(bucket), count, groups, SHARES)

    def _ticks(self, chosen: Ints) -> list[list[int]]:
        ticks = min(TICKS, self.span.bins)
        row = self._places(chosen)
        seen = row >= 0
        cell = row[seen] * ticks + self._bin[seen] * ticks // self.span.bins
        table = np.bincount(cell, self._sum["count"][seen], len(chosen) * ticks)
        return table.astype(np.int64).reshape(len(chosen), ticks).tolist()

    def rest(self) -> list[list[Any]]:
        """Return [prefix, keys, samples, bytes] of unlisted keys, by the nearest listed branch."""
        branches = {""}
        for name in self.names(self.shown.tolist()):
            parts = shorten(name).split("/")
            branches.update("/".join(parts[:n]) for n in range(1, len(parts)))
        found: dict[str, list[int]] = {}
        counts, sizes = self.keys["count"].tolist(), self.keys["bytes"].tolist()
        for i in self.hidden.tolist():
            prefix = self._names[i]
            while prefix not in branches:
                prefix = prefix.rpartition("/")[0]
            held = found.setdefault(prefix, [0, 0, 0])
            held[0] += 1
            held[1] += counts[i]
            held[2] += sizes[i]
        return [[prefix, *held] for prefix, held in sorted(found.items())]

    # ---- silence

    def stopped(self, deleted: Callable[[list[str]], set[str]]) -> Data:
        """Return keys that sent, are silent for longer than ever before, and were not deleted."""
        found = self.keys
        until = int(found["last"].max(initial=0))
        quiet = (until - found["last"]) / MICROS
        with np.errstate(invalid="ignore"):
            stopped = (
                (found["count"] >= STOPPED_SAMPLES)
                & (quiet > STOPPED_INTERVALS * found["interval"])
                & (quiet > np.maximum(found["silence"], STOPPED_SECONDS))
            )
        chosen = np.flatnonzero(stopped)
        chosen = chosen[np.argsort(-quiet[chosen] / found["interval"][chosen], kind="stable")]
        gone = deleted(self.names(chosen.tolist()))
        remaining = [i for i in chosen.tolist() if self._names[i] not in gone]
        rows = [
            [
                shorten(self._names[i]),
                int(found["last"][i]) // 1000,
                _round(quiet[i]),
                _round(found["interval"][i]),
                _round(found["silence"][i]),
            ]
            for i in remaining[:MAX_ROWS]
        ]
        return {"rows": rows, "all": len(remaining), "deleted": len(chosen) - len(remaining)}

    # ---- by time

    def series(self) -> Data:
        bins = self.span.bins
        found: Data = {
            name: np.bincount(self._bin, column, bins).astype(np.int64).tolist()
            for name, column in self._sum.items()
        }
        pairs = np.sort(self._bin * len(self._names) + self._key)
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
        found["keys"] = np.bincount(pairs // max(1, len(self._names)), minlength=bins).tolist()
        rows, bucket, count = self._entries
        found["median"], found["p99"] = self._quantiles(self._bin[rows], bucket, count, bins)
        found["seconds"] = self._seconds()
        return found

    def _seconds(self) -> list[float]:
        """Return the covered seconds of the first and of the last bin, at least 1 s each."""
        if not len(self._first):
            return []
        width = self.span.width
        low, high = int(self._first.min()), int(self._last.max())
        first = min(self.span.start + width, high) - low
        last = high - max(self.span.end - width, low)
        return [max(1.0, _round(edge / MICROS) or 0.0) for edge in (first, last)]

    def latency(self) -> Data:
        _, bucket, count = self._entries
        _, bucket, count = sum_entries(np.zeros(len(bucket), np.int64), bucket, count, 1)
        return latency(bucket_seconds(bucket), count)

    # ---- by source

    def _gaps(self) -> pa.Table:
        """Return how many numbers are missing of each key and source.

        A row has the range of numbers it saw and how many of them are missing. Ranges of minutes
        overlap if samples arrive late, so the result is the whole range less all numbers seen;
        for numbers that wrapped around it is the sum of the gaps within minutes.
        """
        numbered = self._rows.filter(pc.is_valid(self._rows["gaps"]))
        first, last = numbered["first_sn"], numbered["last_sn"]
        seen = pc.subtract(pc.add(pc.subtract(last, first), 1), numbered["gaps"])
        grouped = (
            numbered.append_column("seen", seen)
            .group_by(["key", "source_id", "entity"], use_threads=False)
            .aggregate([("first_sn", "min"), ("last_sn", "max"), ("seen", "sum"), ("gaps", "sum")])
        )
        whole = as_ints(grouped["last_sn_max"]) - as_ints(grouped["first_sn_min"]) + 1
        missing = np.maximum(0, whole - as_ints(grouped["seen_sum"]))
        wrapped = whole >= MAX_SN_SPAN
        missing[wrapped] = as_ints(grouped["gaps_sum"])[wrapped]
        return grouped.append_column("missing", pa.array(missing))

    def sources(self) -> Data:
        """Return one list per column of the sources, with their missing numbers."""
        found = self._rows.group_by(["source_id", "entity"], use_threads=False).aggregate(
            [
                ("count", "sum"),
                ("bytes", "sum"),
                ("duplicates", "sum"),
                ("key", "count_distinct"),
                ("key", "min"),
                ("first", "min"),
                ("last", "max"),
            ]
        )
        found = found.sort_by([("count_sum", "descending"), ("source_id", "ascending")])
        shown = found.slice(0, MAX_ROWS).to_pydict()
        gaps = self._gaps_by_source()
        who = list(zip(shown["source_id"], shown["entity"], strict=True))
        return {
            "id": [None if name is None else shorten(name) for name in shown["source_id"]],
            "entity": shown["entity"],
            "count": shown["count_sum"],
            "bytes": shown["bytes_sum"],
            "duplicates": shown["duplicates_sum"],
            "keys": shown["key_count_distinct"],
            "example": [shorten(name) for name in self.names(shown["key_min"])],
            "first": [at // 1000 for at in shown["first_min"]],
            "last": [at // 1000 for at in shown["last_max"]],
            "gaps": [gaps.get(source) for source in who],
            "all": found.num_rows,
            "publishers": found.num_rows - found["source_id"].null_count,
        }

    def _gaps_by_source(self) -> dict[tuple[str | None, int | None], int]:
        by_source = self._missing.group_by(["source_id", "entity"], use_threads=False)
        summed_up = by_source.aggregate([("missing", "sum")]).to_pydict()
        who = zip(summed_up["source_id"], summed_up["entity"], strict=True)
        return dict(zip(who, summed_up["missing_sum"], strict=True))

    def totals(self) -> Data:
        found = self.keys
        ids = self._rows["source_id"]
        return {
            "samples": int(found["count"].sum()),
            "bytes": int(found["bytes"].sum()),
            "duplicates": int(found["duplicates"].sum()),
            "keys": len(self._names),
            "sources": pc.count_distinct(ids, mode="only_valid").as_py(),
            "gaps": int(found["gaps"].sum()),
        }


def loss_figures(rows: pa.Table, span: TimeSpan) -> Data:
    """Return loss records by kind and time, and one row per lane, source or link."""
    bins = span.bin_of(as_ints(rows["at"]))
    kinds: Data = {}
    kind_of = rows["kind"].combine_chunks().dictionary_encode()
    names, codes = kind_of.dictionary.to_pylist(), kind_of.indices.to_numpy()
    count, unknown = rows["count"].fill_null(0).to_numpy(), pc.is_null(rows["count"]).to_numpy()
    for code, name in enumerate(names):
        mine = codes == code
        kinds[shorten(name)] = {
            "records": int(mine.sum()),
            "count": int(count[mine].sum()),
            "unknown": int(unknown[mine].sum()),
            "series": np.bincount(bins[mine], minlength=span.bins).tolist(),
        }
    return {"kinds": kinds, **_loss_rows(rows)}


def _loss_rows(rows: pa.Table) -> Data:
    who = ["kind", "id", "entity", "priority", "reliable"]
    found = (
        rows.select([*who, "count", "at"])
        .append_column("unknown", pc.is_null(rows["count"]).cast(pa.int64()))
        .group_by(who, use_threads=False)
        .aggregate(
            [("kind", "count"), ("count", "sum"), ("unknown", "sum"), ("at", "min"), ("at", "max")]
        )
        .sort_by([("kind_count", "descending"), ("kind", "ascending"), ("id", "ascending")])
    )
    shown = found.slice(0, MAX_ROWS)
    columns = [shown[name].to_pylist() for name in who]
    columns[1] = [shorten(name) if name else None for name in columns[1]]
    numbers = [shown[name].to_pylist() for name in ("kind_count", "count_sum", "unknown_sum")]
    times = [_millis(as_ints(shown[name])) for name in ("at_min", "at_max")]
    return {
        "rows": [list(row) for row in zip(*columns, *numbers, *times, strict=True)],
        "all": found.num_rows,
    }


def failure_figures(rows: pa.Table) -> Data:
    """Return decoding failures by reason and decoder: how many, and an example."""
    found = (
        rows.group_by(["reason", "decoder"], use_threads=False)
        .aggregate([("key", "count"), ("key", "min"), ("received_at", "max")])
        .sort_by([("key_count", "descending"), ("reason", "ascending")])
    )
    shown = found.slice(0, MAX_ROWS)
    last = _millis(as_ints(shown["received_at_max"]))
    columns = [shown[name].to_pylist() for name in ("reason", "decoder", "key_count", "key_min")]
    return {
        "rows": [
            [shorten(reason or ""), shorten(decoder or ""), count, shorten(key), at]
            for reason, decoder, count, key, at in zip(*columns, last, strict=True)
        ],
        "all": found.num_rows,
        "count": rows.num_rows,
    }


def shorten(text: str) -> str:
    """Return the shown part of a text, with the number of characters cut off.

    >>> shorten("a" * 600)[510:]
    'aa… (88 more characters)'
    """
    if len(text) <= MAX_KEY_CHARS:
        return text
    return f"{text[:MAX_KEY_CHARS]}… ({len(text) - MAX_KEY_CHARS} more characters)"


def _latest_so_far(key: Ints, last: Ints) -> Ints:
    """Return the highest `last` up to each row among rows of its key; rows are sorted by key."""
    if not len(last):
        return last
    distinct, rank = np.unique(last, return_inverse=True)
    lowest = key * len(distinct)  # By ranks, because products of times may exceed 64 bits.
    return distinct[np.maximum.accumulate(lowest + rank) - lowest]


def _millis(times: Ints) -> list[int]:
    return (times // 1000).tolist()  # type: ignore[no-any-return]


def _round(value: float) -> float | None:
    return None if value != value else float(f"{value:.4g}")


def _round_all(values: Floats) -> list[float | None]:
    return [_round(value) for value in values.tolist()]
