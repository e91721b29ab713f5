"""The page of a report in a browser: what a person sees, clicks, types and prints."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.support import ledger
from tests.support.ledger import HOSTILE, MINUTES, Sums
from zenlake.lake.project import Project
from zenlake.lake.report import render_page, report

pytestmark = pytest.mark.slow

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 30_000.0  # Milliseconds.
WIDTHS = (1280, 768, 390, 320)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return report(ledger.make(folder / "lake"), folder / "report.html").path


class Seen:
    """A page that is open, and what it asked for or complained about."""

    def __init__(self, browser: Browser, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path) -> Page:
        self.asked.clear()
        self.page.goto(path.as_uri())
        return self.page

    def check(self) -> None:
        assert self.complaints == []
        assert len(self.asked) == 1, "a page that loads something"


@pytest.fixture(scope="module")
def seen(browser: Browser) -> Iterator[Seen]:
    found = Seen(browser)
    yield found
    found.context.close()


@pytest.fixture
def opened(seen: Seen) -> Iterator[Seen]:
    """To open any page with, wide and light; it may not complain."""
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    seen.page.emulate_media(color_scheme="light", media="screen")
    seen.complaints.clear()
    yield seen
    seen.check()


@pytest.fixture
def shown(opened: Seen, written: Path) -> Page:
    return opened.open(written)


def row(shown: Page, name: str) -> Locator:
    """The row of the tree whose name begins so."""
    return shown.locator("#tree tbody tr").filter(has_text=re.compile("^.?" + re.escape(name)))


def names(shown: Page) -> list[str]:
    return shown.locator("#tree tbody bdi").all_inner_texts()


def test_the_headline_sums_up_samples_losses_and_failures(shown: Page) -> None:
    sums = Sums()
    expect(shown.locator("h1")).to_have_text("What flowed through ledger")
    words = shown.locator("#verdict").inner_text()
    assert f"{len(sums.by_key)} keys" in words
    assert "7 samples are known to be missing" in words
    assert "15 frames never came on a link" in words
    assert "1 key has stopped" in words
    assert "3 payloads did not decode" in words
    tiles = shown.locator("#headline").inner_text()
    assert f"Samples\n{sums.samples:,}" in tiles
    assert "Duplicates\n3" in tiles


def test_the_tree_opens_by_click(shown: Page) -> None:
    shown.locator("#close-all").click()
    expect(row(shown, "robot/")).to_have_attribute("aria-expanded", "false")
    expect(row(shown, "1/")).to_have_count(0)
    row(shown, "robot/").click()
    expect(row(shown, "robot/")).to_have_attribute("aria-expanded", "true")
    row(shown, "1/").click()
    slow = row(shown, "slow")
    expect(slow).to_contain_text(str(len(Sums().by_key["robot/1/slow"])))
    expect(slow).to_contain_text("text/<i>")
    shown.locator("#open-all").click()
    assert len(names(shown)) > len(HOSTILE) + 4


def test_the_tree_opens_by_keyboard(shown: Page) -> None:
    shown.locator("#close-all").click()
    shown.locator("#tree tbody tr").first.focus()
    for key, there in (("ArrowRight", "true"), ("ArrowLeft", "false"), ("Enter", "true")):
        shown.keyboard.press(key)
        expect(row(shown, "robot/")).to_have_attribute("aria-expanded", there)
        expect(row(shown, "robot/")).to_be_focused()
    shown.keyboard.press("ArrowDown")
    expect(row(shown, "1/")).to_be_focused()
    shown.keyboard.press(" ")
    expect(row(shown, "pose")).to_be_visible()
    shown.keyboard.press("ArrowLeft")
    expect(row(shown, "pose")).to_have_count(0)
    shown.keyboard.press("ArrowLeft")
    expect(row(shown, "robot/")).to_be_focused()


POSES = {"robot/1/pose", "robot/2/pose", "robot/3/pose"}
FILTERS: dict[str, set[str]] = {
    "pose": POSES,
    "POSE": POSES,
    "**/pose": POSES,
    "robot/*/slow": {"robot/1/slow"},
    "robot/1/**": {"robot/1/pose", "robot/1/slow"},
    "*/po$*": set(),
    "robot/2/po$*": {"robot/2/pose"},
    "钥匙": {"тест/钥匙/😀"},
    "<img": {"<img src=x onerror=window.hacked=1>"},
    "(": set(),
    "(*": set(),
}


def test_the_filter_shows_the_keys_that_match(shown: Page) -> None:
    found = shown.locator("#tree tbody tr:not([aria-expanded]) td.left")
    for words, keys in FILTERS.items():
        shown.locator("#filter").fill(words)
        assert {cell.get_attribute("title") for cell in found.all()} == keys, words
        more = shown.locator("#tree .more")
        assert more.is_visible() is not bool(keys)
    shown.locator("#filter").fill("")
    expect(row(shown, "robot/")).to_be_visible()


def test_columns_sort(shown: Page) -> None:
    shown.locator("#open-all").click()
    assert names(shown)[0] == "robot/"
    head = shown.locator("#tree th").filter(has_text="Key")
    head.locator("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    top = shown.locator('#tree tr[aria-level="1"] td.left')
    titles = [cell.get_attribute("title") or "" for cell in top.all()]
    assert titles == sorted(titles)
    assert len(titles) == len(HOSTILE) + 1
    head.locator("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")


def test_charts_tell_their_values(shown: Page) -> None:
    sums = Sums()
    chart = shown.locator("#chart-rate .plot")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + 60, box["y"] + 80)
    tip = chart.locator(".tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("2026-11-15 10:00 UTC")
    expect(tip).to_contain_text(f"({sums.per_minute[0]:,} of 4 keys)")
    shown.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    chart.focus()
    for _ in range(3):
        shown.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("2026-11-15 10:02 UTC")
    expect(tip).to_contain_text(f"({sums.per_minute[2]:,} of")
    shown.keyboard.press("End")
    expect(tip).to_contain_text("2026-11-15 10:29 UTC")
    shown.locator("#chart-latency .plot").focus()
    shown.keyboard.press("Home")
    expect(shown.locator("#chart-latency .tip")).to_contain_text("samples")


def test_charts_show_a_part_of_the_time(shown: Page) -> None:
    label = shown.locator("#shown")
    expect(label).to_have_text("2026-11-15 10:00 to 2026-11-15 10:30 UTC")
    shown.get_by_role("button", name="Last 15 min").click()
    expect(label).to_have_text("2026-11-15 10:15 to 2026-11-15 10:30 UTC")
    shown.get_by_role("button", name="All", exact=True).click()
    chart = shown.locator("#chart-bytes .plot")
    box = chart.bounding_box()
    assert box is not None
    step = (box["width"] - 68) / MINUTES
    left = box["x"] + 58
    shown.mouse.move(left + 5.5 * step, box["y"] + 60)
    shown.mouse.down()
    shown.mouse.move(left + 9.5 * step, box["y"] + 60, steps=4)
    expect(chart.locator(".brush")).to_be_visible()
    shown.mouse.up()
    expect(label).to_have_text("2026-11-15 10:05 to 2026-11-15 10:10 UTC")
    chart.focus()
    shown.keyboard.press("Escape")
    expect(label).to_have_text("2026-11-15 10:00 to 2026-11-15 10:30 UTC")


def test_what_went_wrong_is_told(shown: Page) -> None:
    for part, words in (
        ("#loss", ("source", "3 samples", "15 frames", "unknown")),
        ("#silence", ("robot/2/pose", "20 min", "1 s")),
        ("#duplicates", ("robot/1/pose", "3")),
        ("#failed", ("not JSON: <b> (json)", "no descriptor")),
        ("#sources", ("without source information", "0a0a0a0a…0a0a0a")),
        ("#lanes", ("data, reliable", "the recorder")),
        ("#tables", ("health", "tombstones")),
    ):
        for word in words:
            expect(shown.locator(part)).to_contain_text(word)


def test_hostile_keys_are_text(shown: Page) -> None:
    shown.locator("#open-all").click()
    titles = [cell.get_attribute("title") for cell in shown.locator("#tree tbody td.left").all()]
    for key in HOSTILE:
        seen = re.sub("[\n\u2028\u202e]", lambda found: f"⟨{ord(found[0]):04X}⟩", key)
        assert seen in titles
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("main img, main script, main i:not(.share i), main b b").count() == 0
    assert "\u202e" not in shown.locator("body").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(opened: Seen, written: Path, scheme: Any) -> None:
    opened.page.emulate_media(color_scheme=scheme)
    shown = opened.open(written)
    other = {"light": "dark", "dark": "light"}[scheme]
    expect(shown.locator("html")).to_have_attribute("data-theme", scheme)
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 128"
    assert shown.evaluate(light) is (scheme == "light")
    shown.locator("#theme").click()
    expect(shown.locator("html")).to_have_attribute("data-theme", other)
    assert shown.evaluate(light) is (scheme != "light")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    expect(shown.locator(".top")).to_be_hidden()


def test_no_width_scrolls_sideways(shown: Page) -> None:
    for width in WIDTHS:
        shown.set_viewport_size({"width": width, "height": 800})
        shown.locator("#open-all").click()
        sizes = shown.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert sizes[0] <= sizes[1] == width
        assert shown.locator("#tree").evaluate("(one) => one.scrollWidth <= one.clientWidth")


def test_the_busiest_is_named_by_its_minute(shown: Page) -> None:
    sums = Sums()
    minute = max(range(MINUTES), key=lambda number: sums.per_minute[number])
    tile = shown.locator("#headline .tile").filter(has_text="Busiest")
    expect(tile.locator(".sub")).to_have_text(f"in the minute of 10:{minute:02}")


def test_a_phone_shows_what_its_width_hides(browser: Browser, written: Path) -> None:
    """Keys open to show the columns that are hidden; nothing is said of a keyboard."""
    phone = Seen(browser, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    shown = phone.open(written)
    expect(shown.locator("#when .hint")).to_contain_text("Drag over a chart")
    expect(shown.locator(".keyboard")).to_be_hidden()
    shown.locator("#open-all").tap()
    slow = row(shown, "slow")
    expect(slow).to_have_attribute("aria-expanded", "false")
    expect(slow).not_to_contain_text("Last seen")
    slow.tap()
    expect(slow).to_have_attribute("aria-expanded", "true")
    for name in ("Rate", "Payload", "Size", "Latency", "Gaps", "Last seen"):
        expect(slow.get_by_text(name, exact=True)).to_be_visible()
    sizes = shown.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1] == 390
    slow.tap()
    expect(slow).not_to_contain_text("Last seen")
    shown.set_viewport_size({"width": 700, "height": 800})
    slow.tap()
    expect(slow.get_by_text("Latency", exact=True)).to_be_visible()
    expect(slow.get_by_text("Rate", exact=True)).to_be_hidden()  # it has a column here
    shown.set_viewport_size({"width": 1280, "height": 800})
    expect(slow).not_to_have_attribute("aria-expanded", "true")
    expect(slow.locator("dl")).to_have_count(0)
    assert phone.complaints == []
    phone.context.close()


def test_details_open_by_keyboard(shown: Page) -> None:
    shown.set_viewport_size({"width": 390, "height": 800})
    shown.locator("#open-all").click()
    slow = row(shown, "slow")
    slow.click()
    for key, there in (("ArrowLeft", "false"), ("ArrowRight", "true"), ("Enter", "false")):
        shown.keyboard.press(key)
        expect(slow).to_have_attribute("aria-expanded", there)
        expect(slow).to_be_focused()


def test_header_buttons_are_large_enough_to_hit(shown: Page) -> None:
    sizes = """[...document.querySelectorAll('th button')].filter((one) => one.offsetParent)
      .map((one) => one.getBoundingClientRect()).filter((one) => one.height < 24 || one.width < 24)
      .length"""
    for width in WIDTHS:
        shown.set_viewport_size({"width": width, "height": 800})
        assert shown.evaluate(sizes) == 0
    assert shown.locator("th button").count() > 5


def test_every_control_has_a_name(shown: Page) -> None:
    named = """[...document.querySelectorAll('button, input, a, [tabindex="0"]')].filter((one) =>
      !(one.innerText || one.ariaLabel || one.labels?.[0]?.innerText || '').trim()).length"""
    assert shown.evaluate(named) == 0


def test_a_lake_with_nothing_in_it(opened: Seen, tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "new"\n', tmp_path / "lake.toml")
    shown = opened.open(report(project, tmp_path / "report.html").path)
    expect(shown.locator("#covers")).to_contain_text("There is nothing in this lake")


def test_a_lake_where_all_is_well(opened: Seen, tmp_path: Path) -> None:
    """One sample without a timestamp or a source, in one minute: every list is empty."""
    project = Project.parse('[lake]\nname = "calm"\n', tmp_path / "lake.toml")
    at = ledger.START
    only = {"minute": at, "key": "k", "count": 1, "bytes": 3, "min_bytes": 3, "max_bytes": 3}
    seconds = {"first_seen": at, "last_seen": at, "silence": 0.0, "duplicates": 0}
    ledger.put(project, "health", [only | seconds | {"latency_histogram": []}])
    shown = opened.open(report(project, tmp_path / "report.html").path)
    for words in (
        "No loss was seen.",
        "Every key that sent regularly still does.",
        "No sample came twice.",
        "No sample has a timestamp",
        "Nothing was decoded",
        "No lane, link or source lost anything.",
    ):
        expect(shown.locator("main")).to_contain_text(words)
    expect(shown.locator("#headline")).to_contain_text("samples name no source")


def test_a_page_with_many_keys_says_how_many_more(opened: Seen, tmp_path: Path) -> None:
    from zenlake.lake.report import figures, gather

    project = ledger.make(tmp_path / "lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "MAX_KEYS", 2)
        data = gather(project)
    out = tmp_path / "report.html"
    out.write_text(render_page(data | {"left_out": {"loss": 60_000}}), "utf-8")
    shown = opened.open(out)
    shown.locator("#open-all").click()
    expect(shown.locator("#tree")).to_contain_text(f"and {len(HOSTILE)} more keys")
    expect(row(shown, "robot/")).to_contain_text("4 keys")
    expect(shown.locator("#notice")).to_contain_text("loss before 1970-01-01 00:01")
