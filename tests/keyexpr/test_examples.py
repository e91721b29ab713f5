"""The examples in the documentation of the package are true."""

import doctest
from types import ModuleType

import pytest

import zenlake.keyexpr
import zenlake.keyexpr.canon
import zenlake.keyexpr.match
import zenlake.keyexpr.tree


@pytest.mark.parametrize(
    "module",
    [zenlake.keyexpr, zenlake.keyexpr.canon, zenlake.keyexpr.match, zenlake.keyexpr.tree],
)
def test_the_examples_of_each_module_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
