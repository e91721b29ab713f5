"""Every choice of the command line is a member of the API's enumeration."""

from typing import get_args

import pytest

import zenlake
from zenlake.cli import options


@pytest.mark.parametrize(
    ("choice", "enumeration"),
    [
        (options.PriorityChoice, "Priority"),
        (options.CongestionControlChoice, "CongestionControl"),
        (options.ReliabilityChoice, "Reliability"),
        (options.QueryTargetChoice, "QueryTarget"),
        (options.ConsolidationChoice, "ConsolidationMode"),
    ],
)
def test_every_choice_has_its_member(choice: object, enumeration: str) -> None:
    for word in get_args(choice):
        member = options.to_api(enumeration, word)
        assert isinstance(member, getattr(zenlake, enumeration))
        assert str(member).rpartition(".")[2] == word.upper().replace("-", "_")
    assert options.to_api(enumeration, None) is None
