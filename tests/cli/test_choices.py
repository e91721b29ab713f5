"""Every choice of the command line is a member of the API's enumeration."""

from enum import StrEnum

import pytest

import zenlake
from zenlake.cli import choices


@pytest.mark.parametrize(
    ("choice", "enumeration"),
    [
        (choices.PriorityChoice, zenlake.Priority),
        (choices.CongestionControlChoice, zenlake.CongestionControl),
        (choices.ReliabilityChoice, zenlake.Reliability),
        (choices.QueryTargetChoice, zenlake.QueryTarget),
        (choices.ConsolidationChoice, zenlake.ConsolidationMode),
    ],
)
def test_every_choice_has_its_member(choice: type[StrEnum], enumeration: object) -> None:
    for member in choice:
        assert choices.to_api(member) == getattr(enumeration, member.name)
    assert choices.to_api(None) is None
