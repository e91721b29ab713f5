"""Options that several commands share: durations, and the choices of the API."""

from typing import Annotated, get_args

import pytest
import typer
from typer.testing import CliRunner

import zenlake
from zenlake.cli import options

app = typer.Typer()


@app.command()
def wait(
    timeout: Annotated[
        float, options.duration_option("--timeout", most=60.0, help="Longest wait.")
    ] = 10.0,
    every: Annotated[
        float | None, options.duration_option("--every", least=0.0, bare=False, help="Period.")
    ] = None,
) -> None:
    typer.echo(f"{timeout} {every}")


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        ((), "10.0 None"),
        (("--timeout", "500ms"), "0.5 None"),
        (("--timeout", "5s"), "5.0 None"),
        (("--timeout", "1m"), "60.0 None"),
        (("--timeout", "2"), "2.0 None"),
        (("--timeout", "1.5", "--every", "1h30m"), "1.5 5400.0"),
    ],
)
def test_a_duration_is_seconds(args: tuple[str, ...], printed: str) -> None:
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, done.stdout) == (0, printed + "\n")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--timeout", "soon"), "'soon' is not"),
        (("--timeout", "0"), "'0' is not within 0.1 s to 1 m"),
        (("--timeout", "2m"), "'2m' is not within 0.1 s to 1 m"),
        (("--timeout", "-1s"), "'-1s' is not"),
        (("--timeout", "nan"), "'nan' is not"),
        (("--every", "10"), "'10' "),
    ],
)
def test_another_text_is_refused_by_the_name_of_the_option(
    args: tuple[str, ...], problem: str
) -> None:
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, args)
    assert done.exit_code == 2
    assert args[0] in done.stderr
    assert problem in done.stderr


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
