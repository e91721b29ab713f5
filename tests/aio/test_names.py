"""The asyncio API has every name of the session API, with the same arguments."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import pytest

import zenlake
from zenlake import aio, api

PAIRS = [
    (name, getattr(api, name), getattr(aio, name))
    for name in (
        "LinkEventsListener",
        "Liveliness",
        "LivelinessToken",
        "MatchingListener",
        "Publisher",
        "Querier",
        "Query",
        "Queryable",
        "Scout",
        "Session",
        "SessionInfo",
        "Subscriber",
        "TransportEventsListener",
    )
]
INSIDE = {"of", "opened", "closed", "SessionInfo.close"}  # Called by the API's parts alone.
WAITS = {"put", "delete", "get", "recv", "undeclare", "close", "reply", "reply_del", "reply_err"}


def names(kind: type[Any]) -> set[str]:
    found = {name for name in dir(kind) if not name.startswith("_")}
    return {name for name in found if not {name, f"{kind.__name__}.{name}"} & INSIDE}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if p.name != "self"]


@pytest.mark.parametrize(("name", "theirs", "ours"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_every_name_with_the_same_arguments(name: str, theirs: Any, ours: Any) -> None:
    assert names(theirs) - names(ours) == set()
    for each in names(theirs):
        was, now = getattr(theirs, each), getattr(ours, each)
        assert isinstance(now, property) is isinstance(was, property), each
        if callable(was):
            assert parameters(now) == parameters(was), each
        if each in WAITS or each.startswith(("declare_", "put_")):
            assert inspect.iscoroutinefunction(now), each


@pytest.mark.parametrize(("name", "theirs", "ours"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_keywords_have_the_types_of_the_session_api(name: str, theirs: Any, ours: Any) -> None:
    for each in names(theirs):
        was, now = getattr(theirs, each), getattr(ours, each)
        if callable(was):
            shown = inspect.signature(now).parameters
            for key, found in inspect.signature(was).parameters.items():
                if found.kind is Parameter.KEYWORD_ONLY:
                    assert shown[key].annotation == found.annotation, each


def test_open_and_scout_are_coroutines_with_the_parameters_of_the_api() -> None:
    for name in ("open", "scout"):
        now = getattr(aio, name)
        assert parameters(now) == parameters(getattr(api, name))
        assert inspect.iscoroutinefunction(now)


def test_all_is_there_and_documented() -> None:
    assert zenlake.aio is aio
    for name in aio.__all__:
        found = getattr(aio, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__doc__, name
