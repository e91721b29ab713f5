"""The pages: their examples run, their limits are the code's, and the names on them exist."""

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.names import Page
from zenlake.transport.drop_reason import DropReason

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = DOCS / "api.md"
ROOT = DOCS.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        ROOT / "deploy" / "README.md",
        ROOT / "examples" / "README.md",
    ]
)


@pytest.mark.kernel
@pytest.mark.parametrize(("page", "examples"), [(GUIDE, 40), (DOCS / "inside.md", 40)])
def test_the_examples_of_a_page(page: Path, examples: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    parsed = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.stem, str(page), 0)
    assert len(parsed.examples) > examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(parsed)
    assert runner.summarize(verbose=False).failed == 0


def limits() -> list[tuple[str, str]]:
    return re.findall(r"^\| `([a-z_.]+\.[A-Z_]+)` \| ([\d,]+) \|", GUIDE.read_text(), re.MULTILINE)


def test_the_limits_are_listed() -> None:
    assert len(limits()) > 20


@pytest.mark.parametrize(("name", "value"), limits())
def test_the_guide_s_limits(name: str, value: str) -> None:
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"zenlake.{module}"), constant) == int(value.replace(",", ""))


def test_the_guide_lists_every_drop_reason() -> None:
    section = GUIDE.read_text().partition("## Drop reasons")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert listed == [(reason.value, reason.description) for reason in DropReason]


def test_drop_reasons_are_labels() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", reason) for reason in DropReason)
    assert all(reason.description.endswith(".") for reason in DropReason)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_a_page(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\]\(([^)#]+)\)", text):
        if not name.startswith("https://"):
            assert (page.parent / name).exists(), name
    for name in re.findall(r"`((?:tests|src|docs|bench|examples)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of `page`."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_anchors_of_a_page(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([\w/.-]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / name if name else page), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_on_a_page_exist(page: Path) -> None:
    assert list(Page(page).mistakes()) == []


def missing_files(docstring: str, names: set[str]) -> list[str]:
    """Return the Python files that `docstring` names and that no path in `names` ends with."""
    named = re.findall(r"[\w/]+\.py\b", docstring)
    return [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in names)]


def test_files_that_a_module_names_exist() -> None:
    folders = ("src", "tests", "bench", "demo")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    names = {page_id(path) for path in modules}
    missing = {
        page_id(path): files
        for path in modules
        if (files := missing_files(ast.get_docstring(ast.parse(path.read_text())) or "", names))
    }
    assert missing == {}


def test_a_missing_file_is_found() -> None:
    names = {"src/zenlake/capture/kernels/rows.py"}
    text = "Compiled: kernels/rows.py, rows.py, ows.py, rows_kernel.py."
    assert missing_files(text, names) == ["ows.py", "rows_kernel.py"]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("`api/session.py` `Session.put` sends", None),
        ("`api/session.py` `appender` sends", "not defined in src/zenlake/api/session.py"),
        ("`api/session.py` `Session.send_plain`", "not defined in src/zenlake/api/session.py"),
        ("`send_plain` (`api/session.py`)", "not defined in src/zenlake/api/session.py"),
        ("one put: `Publisher.put`", None),
        ("one put: `Publisher.send_plain`", "Publisher has no send_plain"),
        ("every drop is in `session.stats()`", None),
        ("every drop is in `session.counters`", "Session has no counters"),
        ("callbacks have a `Callback`", None),
        ("the reader is a `Scanner`", "not a name of the public modules"),
        ("callbacks have a `Nonesuch`", "no class or function"),
        ("`zenlake.errors.DecodeError`", None),
        ("`zenlake.errors.Nonesuch`", "zenlake.errors has no Nonesuch"),
        ("`zenlake.nonesuch.Thing`", "has no nonesuch"),
        ("`wire/push.py` and `wire/`", None),
        ("`wire/nonesuch.py`", "no such file"),
        ("`nonesuch/`", "no such file"),
        ("`put_batch()`", None),
        ("`put_nonesuch()`", "no definition"),
        ("`api.handlers.FIFO_ITEMS`", None),
        ("`api.handlers.NO_ITEMS`", "api.handlers has no NO_ITEMS"),
    ],
)
def test_the_check_of_names(text: str, mistake: str | None) -> None:
    found = list(Page(ROOT / "README.md", text).mistakes())
    assert bool(found) == bool(mistake), found
    assert mistake is None or any(mistake in line for line in found), found
