"""What the guide shows is what happens, and its limits are the code's."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

from zenlake.transport.drop_reason import DropReason

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = DOCS / "api.md"
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "CONTRIBUTING.md", DOCS.parent / "CHANGELOG.md"])


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\]\(([^)#]+)\)", text):
        if not name.startswith("https://"):
            assert (page.parent / name).exists(), name
    for name in re.findall(r"`((?:tests|src|docs|bench|examples)/[\w/.]+)`", text):
        assert (DOCS.parent / name).exists(), name
