"""Every figure of `make bench` can be measured; this does not judge their values."""

import importlib
import math

import pytest

from bench import api, capture, figures, keyexpr, log, replay, session, start, wire
from bench.__main__ import PARTS
from bench.figures import Figure


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MESSAGES", 2_000)
    monkeypatch.setattr(start, "ROUNDS", 1)
    monkeypatch.setattr(keyexpr, "RUNS", 1)
    monkeypatch.setattr(figures, "ROUNDS", 1)
    monkeypatch.setattr(figures, "TURNS", 1)
    monkeypatch.setattr(session, "TURNS", 1)
    monkeypatch.setattr(session, "PINGS", 20)
    monkeypatch.setattr(session, "FLOWS", {64: 200, 65_536: 20})
    monkeypatch.setattr(session, "LINK_FLOWS", {64: 200, 65_536: 20})
    monkeypatch.setattr(session, "FLOW_ROUNDS", 1)
    monkeypatch.setattr(session, "OPENINGS", 1)
    monkeypatch.setattr(session, "IDLE_SESSIONS", 30)
    monkeypatch.setattr(session, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(api, "SIZES", (64, 65_536))
    monkeypatch.setattr(api, "SECONDS", 0.05)
    monkeypatch.setattr(api, "PINGS", 20)
    monkeypatch.setattr(api, "RECEIVERS", 2)
    monkeypatch.setattr(api, "SUBSCRIPTIONS", (1, 100))
    monkeypatch.setattr(api, "FINDS", 10)
    monkeypatch.setattr(api, "IDLE_SESSIONS", 2)
    monkeypatch.setattr(log, "SIZES", (8, 64))
    monkeypatch.setattr(log, "SECONDS", 0.05)
    monkeypatch.setattr(log, "READ_SAMPLES", 20_000)
    monkeypatch.setattr(replay, "SAMPLES", 20_000)
    monkeypatch.setattr(capture, "FILE_BYTES", 200_000)
    monkeypatch.setattr(capture, "TSHARK_ROUNDS", 1)


@pytest.mark.campaign
@pytest.mark.parametrize("part", sorted(PARTS.keys() - {"spark", "lake", "serve"}))  # elsewhere
def test_the_figures_can_be_measured(part: str) -> None:
    found = list(importlib.import_module(f"bench.{part}").figures())
    assert len(found) > 1
    for figure in found:
        assert math.isfinite(figure.value)
        # In so short a time few sessions may take no memory or time that can be seen.
        assert figure.value > 0 or (figure.value == 0 and "idle" in figure.name)
        assert figure.line().startswith(figure.name)


def test_an_aim_that_is_missed_is_said() -> None:
    assert "MISSED" in Figure("slow", 1, "x", at_least=2).line()
    assert "MISSED" in Figure("late", 3, "s", at_most=2).line()
    assert "MISSED" not in Figure("fine", 2, "x", at_least=2).line()
