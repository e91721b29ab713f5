"""A report says what a ledger says, and nothing in it can do harm to who reads it."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support import ledger
from tests.support.ledger import HOSTILE, MINUTES, OTHER, ROBOT, START, Sums, rank
from zenlake.cli.commands.lake_report import format_summary
from zenlake.cli.commands.lake_report import report as command
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.report import ReportSummary, figures, gather, reading, render_page, report
from zenlake.lake.report.quantiles import MAX_BARS, bars, quantiles
from zenlake.lake.report.span import MAX_BINS, MICROS, MINUTE, choose_span
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.reduce import sum_entries

CLOSE = 0.03  # Relative tolerance: buckets of latency are exact to 2 %.


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return ledger.make(tmp_path_factory.mktemp("report") / "lake")


@pytest.fixture(scope="module")
def data(project: Project) -> dict[str, Any]:
    return gather(project)


def millis(seconds: float) -> int:
    return round((START.timestamp() + seconds) * 1000)


# ---- figures


def test_report_totals(data: dict[str, Any]) -> None:
    sums, total = Sums(), data["total"]
    assert total["samples"] == sums.samples
    assert total["bytes"] == sums.bytes
    assert total["duplicates"] == sums.duplicates == 3
    assert total["keys"] == len(sums.by_key)
    assert total["sources"] == 2
    assert total["gaps"] == sums.missing(ROBOT, 1) == 3
    assert (total["live"], total["deleted"]) == (len(sums.by_key) - 1, 1)


def test_report_of_every_key(data: dict[str, Any]) -> None:
    sums, keys = Sums(), data["keys"]
    assert sorted(keys["key"]) == sorted(sums.by_key)
    for i, key in enumerate(keys["key"]):
        mine = sums.by_key[key]
        assert keys["count"][i] == len(mine)
        assert keys["bytes"][i] == sum(sample.size for sample in mine)
        assert keys["min"][i] == min(sample.size for sample in mine)
        assert keys["max"][i] == max(sample.size for sample in mine)
        assert keys["first"][i] == millis(mine[0].at)
        assert keys["last"][i] == millis(mine[-1].at)
        assert keys["silence"][i] == pytest.approx(sums.silence(key), rel=1e-3)
        assert sum(keys["ticks"][i]) == len(mine)
        assert keys["gaps"][i] == (None if mine[0].source is None else 3 * (key == "robot/1/pose"))
        assert keys["duplicates"][i] == 3 * (key == "robot/1/pose")
        assert keys["encoding"][i] == ("" if key == "robot/3/pose" else "text/<i>")
        times = sums.latencies(key)
        for name, share in (("median", 0.5), ("p99", 0.99)):
            wanted = pytest.approx(rank(times, share), rel=CLOSE) if times else None
            assert keys[name][i] == wanted
    assert keys["count"] == sorted(keys["count"], reverse=True)
    assert keys["interval"][keys["key"].index("robot/1/slow")] == 300.0
    assert data["rest"] == []


def test_report_by_time(data: dict[str, Any]) -> None:
    sums, series, span = Sums(), data["series"], data["range"]
    assert (span["from"], span["width"], span["bins"]) == (millis(0), 60, MINUTES)
    assert series["count"] == sums.per_minute
    assert sum(series["bytes"]) == sums.bytes
    assert series["duplicates"][0] == 2
    assert series["keys"][0] == 4  # robot 1 pose and slow, robots 2 and 3
    assert series["keys"][12] == 1
    last = max(sample.at for sample in sums.once)
    assert series["seconds"] == pytest.approx([59.9, last - (MINUTES - 1) * 60], rel=1e-3)
    quiet = sorted(sample.latency for sample in sums.once if sample.minute == 12 and sample.latency)
    assert series["median"][12] == pytest.approx(rank(quiet, 0.5), rel=CLOSE)


def test_report_latency(data: dict[str, Any]) -> None:
    times, found = Sums().latencies(), data["latency"]
    assert found["count"] == len(times)
    assert found["median"] == pytest.approx(rank(times, 0.5), rel=CLOSE)
    assert found["p99"] == pytest.approx(rank(times, 0.99), rel=CLOSE)
    assert sum(count for _, _, count in found["bars"]) == len(times)
    below = sum(count for _, high, count in found["bars"] if high < 0)
    assert below == sum(time < 0 for time in times) == 600
    edges = [edge for low, high, _ in found["bars"] for edge in (low, high)]
    assert edges == sorted(edges)


def test_report_of_stopped_keys(data: dict[str, Any]) -> None:
    found = data["stopped"]
    (row,) = found["rows"]
    end = max(sample.at for sample in Sums().once)
    assert row[0] == "robot/2/pose"
    assert row[1] == millis(599.3)
    assert row[2] == pytest.approx(end - 599.3, rel=1e-3)
    assert row[3:] == [1.0, 1.0]
    assert (found["all"], found["deleted"]) == (1, 1)


def test_report_of_loss(data: dict[str, Any]) -> None:
    kinds = data["loss"]["kinds"]
    shown = {
        kind: (loss["records"], loss["count"], loss["unknown"]) for kind, loss in kinds.items()
    }
    assert shown == {
        "source": (2, 3, 0),
        "lane": (2, 15, 0),
        "link": (1, 0, 1),
        "dropped": (1, 4, 0),
    }
    assert [i for i, n in enumerate(kinds["source"]["series"]) if n] == [0, 16]
    rows = {(row[0], row[1]): row for row in data["loss"]["rows"]}
    assert rows["lane", OTHER][2:] == [None, 5, True, 2, 15, 0, millis(300), millis(310)]
    assert rows["link", OTHER][5:8] == [1, None, 1]
    assert data["loss"]["all"] == 4


def test_report_of_failed_payloads(data: dict[str, Any]) -> None:
    found = data["failed"]
    assert (found["count"], found["all"], found["decoded"]) == (3, 2, 0)
    assert found["rows"][0] == ["not JSON: <b>", "json", 2, "robot/1/pose", millis(6)]


def test_report_of_sources(data: dict[str, Any]) -> None:
    sums, found = Sums(), data["sources"]
    pairs = list(zip(found["id"], found["entity"], strict=True))
    who = {pair: i for i, pair in enumerate(pairs)}
    for name, entity in ((ROBOT, 1), (OTHER, 7), (OTHER, 8)):
        i = who[name, entity]
        assert found["count"][i] == len(sums.numbers(name, entity))
        assert found["gaps"][i] == sums.missing(name, entity)
        assert found["keys"][i] == 1
    assert (found["all"], found["publishers"]) == (4, 3)
    nobody = who[None, None]
    assert found["gaps"][nobody] is None
    assert found["keys"][nobody] == 1 + len(HOSTILE)
    assert found["duplicates"][who[ROBOT, 1]] == 3


def test_report_of_a_part_of_the_time(project: Project) -> None:
    """Times inside of minutes mean the whole minute."""
    start, end = START + timedelta(minutes=5, seconds=3), START + timedelta(minutes=12, seconds=9)
    data = gather(project, start, end)
    sums = Sums(5, 13)
    assert data["total"]["samples"] == sums.samples
    assert data["series"]["count"] == sums.per_minute
    assert set(data["loss"]["kinds"]) == {"lane"}
    assert data["failed"]["count"] == 0
    with pytest.raises(ZError, match="the start comes first"):
        gather(project, end, start)


def test_late_numbers_are_not_a_gap(tmp_path: Path) -> None:
    """A number that comes in the next minute is missing in neither, once both are seen."""
    rows = [
        _health(0, first_sn=1, last_sn=10, gaps=1, count=9),  # without 9
        _health(1, first_sn=9, last_sn=20, gaps=1, count=11),  # with 9, without 10
        _health(2, first_sn=23, last_sn=23, gaps=0, count=1),
        _health(3, count=0, duplicates=2, first_seen=None, last_seen=None),
    ]
    other = Project.parse('[lake]\nname = "late"\n', tmp_path / "late" / "lake.toml")
    ledger.put(other, "health", rows)
    data = gather(other)
    assert data["total"]["gaps"] == 2
    assert data["sources"]["gaps"] == [2]
    assert data["keys"]["duplicates"] == [2]
    assert data["keys"]["min"] == [8]


def _health(minute: int, **given: Any) -> dict[str, Any]:
    at = START + timedelta(minutes=minute)
    there = given.get("count", 1) > 0
    return {
        "minute": at,
        "key": "k",
        "source_id": "0c",
        "entity": 1,
        "bytes": 8 * given.get("count", 1),
        "min_bytes": 8 if there else None,
        "max_bytes": 8 if there else None,
        "duplicates": 0,
        "latency_histogram": [],
        "first_seen": at,
        "last_seen": at + timedelta(seconds=1),
        "silence": 0.5,
    } | given


# ---- limits


def test_keys_beyond_the_limit_are_counted_where_they_are(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_KEYS", 2)
    data, sums = gather(project), Sums()
    assert data["keys"]["key"] == ["robot/1/pose", "robot/2/pose"]
    rest = {prefix: numbers for prefix, *numbers in data["rest"]}
    assert rest["robot"] == [1, 600, 600 * 64]
    assert rest["robot/1"][0] == 1
    assert rest[""][0] == len(HOSTILE)
    shown = sum(data["keys"]["count"]) + sum(count for _, count, _ in rest.values())
    assert shown == sums.samples == data["total"]["samples"]


def test_more_health_than_a_page_is_made_of(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is shown from a whole minute on, and the page says so."""
    monkeypatch.setattr(reading, "MAX_HEALTH_ROWS", 1)
    data, sums = gather(project), Sums(MINUTES // 2)
    assert data["left_out"] == {"health": millis(MINUTES // 2 * 60)}
    assert data["range"]["from"] == millis(MINUTES // 2 * 60)
    assert data["total"]["samples"] == sums.samples
    assert set(data["loss"]["kinds"]) == {"source", "link", "dropped"}


def test_more_loss_than_a_page_is_made_of(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is read, however large; the page says from when on."""
    store = DeltaStore(project.table("loss"), TABLES["loss"])
    again = ledger.losses()[0] | {"at": START + timedelta(minutes=28)}
    store.commit(store.write(pa.Table.from_pylist([again], TABLES["loss"].schema)))
    try:
        monkeypatch.setattr(reading, "MAX_LOSS_ROWS", 1)
        data = gather(project)
    finally:
        new = [file for file in store.snapshot().files if file.rows == 1]
        store.commit(removed=new)
    assert data["left_out"] == {"loss": millis(17 * 60)}
    assert data["loss"]["kinds"]["source"]["records"] == 1
    assert len(data["loss"]["kinds"]) == 1


def test_long_texts_are_cut() -> None:
    assert figures.shorten("k" * 512) == "k" * 512
    assert figures.shorten("k" * 10_000).startswith("k" * 512 + "…")
    assert len(figures.shorten("k" * 10_000)) < 600


def test_files_that_are_vacuumed_while_they_are_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = reading._gather, []

    def once(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise FileNotFoundError(2, "gone", "part-0.parquet")
        return real(*given)

    monkeypatch.setattr(reading, "_gather", once)
    assert gather(project)["total"]["samples"] == Sums().samples
    assert len(calls) == 2


@given(st.integers(0, 1 << 52), st.integers(0, 1 << 47))
def test_a_span_holds_both_ends(first: int, length: int) -> None:
    span = choose_span(first, first + length)
    assert span.start <= first < span.start + span.width
    assert span.end - span.width <= first + length < span.end
    assert 1 <= span.bins <= MAX_BINS
    assert span.width % MINUTE == 0


COUNTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-30, 30), st.integers(1, 9)), max_size=40
)


@given(COUNTS)
def test_quantiles_are_those_of_the_values_one_by_one(entries: list[tuple[int, int, int]]) -> None:
    columns = np.array(entries, np.int64).reshape(-1, 3).T
    group, bucket, count = sum_entries(columns[0], columns[1], columns[2], 5)
    median, high = quantiles(group, bucket.astype(float), count, 5, (0.5, 0.99))
    for number in range(5):
        values = sorted(float(v) for g, v, n in entries if g == number for _ in range(n))
        assert median[number] == (rank(values, 0.5) if values else None)
        assert high[number] == (rank(values, 0.99) if values else None)


@given(st.lists(st.tuples(st.floats(-1e5, 1e5), st.integers(1, 9)), min_size=1, max_size=30))
def test_bars_hold_all_and_touch(entries: list[tuple[float, int]]) -> None:
    values, count = np.array([v for v, _ in entries]), np.array([n for _, n in entries])
    found = bars(values, count)
    assert len(found) <= MAX_BARS
    assert sum(n for _, _, n in found) == count.sum()
    assert all(a[1] == b[0] for a, b in pairwise(found))
    edges = found[0][0], found[-1][1]
    for value in values:
        assert edges[0] - abs(edges[0]) * CLOSE <= value <= edges[1] + abs(edges[1]) * CLOSE


# ---- the page


class Parsed(HTMLParser):
    """Elements as a browser finds them, and what stands in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def test_a_page_holds_its_data_and_nothing_gets_out(data: dict[str, Any]) -> None:
    text = render_page(data | {"lake": "</title><script>"})
    parsed = Parsed(text)
    assert len(parsed.scripts) == 2
    assert json.loads(parsed.scripts[0]) == data | {"lake": "</title><script>"}
    assert text.count("</script") == 2
    assert not {"img", "link", "iframe"} & parsed.tags


def test_a_page_loads_nothing(data: dict[str, Any]) -> None:
    text = render_page(data)
    assert all(link.startswith("#") for link in Parsed(text).links)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert text.count("'sha256-") == 2


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_read(data: dict[str, Any]) -> None:
    """4.5 to 1, light and dark, on cards and beside them."""
    blocks = re.findall(
        r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\}", render_page(data), re.DOTALL
    )
    for block in blocks[:2]:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for name in ("ink", "soft", "blue", "teal", "amber", "red", "violet"):
            for ground in ("bg", "card"):
                light, dark = sorted(map(luminance, (colours[name], colours[ground])))[::-1]
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


# ---- the command


@pytest.fixture
def run(tmp_path: Path) -> Any:
    app = typer.Typer()
    app.command()(command)
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(word) for word in words])


def test_the_command_writes_the_page_and_its_totals(
    project: Project, run: Any, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    done = run(project.home, "-o", out, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    sums = Sums()
    assert told["samples"] == sums.samples
    assert told["keys"] == len(sums.by_key)
    assert (told["lost"], told["unknown"], told["stopped"], told["failed"]) == (7, 1, 1, 3)
    assert told["size"] == out.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    done = run(project.home, "-o", out, "--from", "2026-11-15T10:05Z", "--to", "2026-11-15T10:06Z")
    assert f"{Sums(5, 6).samples:,} samples of 4 keys" in done.stdout


def test_a_name_that_ends_in_json_gets_json(project: Project, run: Any, tmp_path: Path) -> None:
    out = tmp_path / "page.json"
    done = run(project.home, "-o", out, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told.pop("path"), told.pop("size")) == (str(out), out.stat().st_size)
    assert json.loads(out.read_text()) == told
    assert told["samples"] == Sums().samples


def test_one_of_a_kind_is_singular(tmp_path: Path) -> None:
    summary = ReportSummary(tmp_path, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    assert "1 sample of 1 key, 1 B; 1 missing and 1 loss of" in format_summary(summary)
    assert "; 1 key stopped, 1 payload not decoded (1 B)" in format_summary(summary)
    assert "; 0 keys stopped, 2 payloads not" in format_summary(
        summary._replace(stopped=0, failed=2)
    )


def test_the_command_says_what_is_wrong(project: Project, run: Any, tmp_path: Path) -> None:
    assert run(tmp_path / "none").exit_code == 1
    assert run(project.home, "--from", "yesterday").exit_code == 2
    done = run(project.home, "-o", tmp_path / "no" / "page.html")
    assert done.exit_code == 1
    assert "there is no folder" in done.output
    assert run(project.home, "-o", tmp_path).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lake_without_tables(tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "new"\n', tmp_path / "lake.toml")
    summary = report(project, tmp_path / "page.html")
    assert (summary.samples, summary.keys, summary.lost) == (0, 0, 0)
    assert json.loads(Parsed(summary.path.read_text()).scripts[0])["range"] is None


def test_the_units_are_what_they_seem() -> None:
    assert datetime.fromtimestamp(choose_span(0, 0).width / MICROS, UTC).minute == 1
