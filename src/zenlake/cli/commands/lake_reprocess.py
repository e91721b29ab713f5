"""`zenlake lake reprocess`: decode samples again by the rules that lake.toml has now.

Knows options and what is printed. Does not know tables or decoders: lake/reprocess does.
"""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from zenlake.cli.display import AdvanceBar, progress_bar
from zenlake.cli.failure import reports_errors
from zenlake.cli.options import LakeArgument, json_option
from zenlake.cli.printing import print_object, print_table, print_text
from zenlake.cli.render.text import escape
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.lake.reprocess.extent import Candidates, SourceName
    from zenlake.lake.reprocess.messages import Counts, ReprocessResult

PRINTED_REASONS = 20  # Reasons that people are shown, the most frequent first.
MAX_REASON = 200  # Characters of a reason that people are shown.


@reports_errors("lake")
def reprocess(
    lake: LakeArgument,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="messages, the one table that is decoded.")
    ],
    source: Annotated[
        Literal["samples", "log"] | None,
        typer.Option(
            "--from", help="Source of the samples. Default: the one that goes back further."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count what would change, by decoder and by reason."),
    ] = False,
    json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Decode samples again by the decoders in lake.toml.

    It makes the rows of messages and messages_failed again, beside a running lake, and puts them in
    place of the old ones in one commit per table. Rows of samples that the source no longer has
    stay as they are. A lake that runs decodes new samples by the changed rules at once; only
    a flow of your own that decodes has to be restarted first.

    Exit status: 0 done, 1 nothing was changed: a rule or the source does not work, or maintenance
    of the lake takes too long, 2 wrong usage.

    \b
    Examples:
      zenlake lake reprocess fleet messages --dry-run
      zenlake lake reprocess fleet messages --from log
    """
    from zenlake.lake.project import Project
    from zenlake.lake.reprocess import messages

    messages.check_table(table)
    began = time.monotonic()

    def tell_source(found: "Candidates", chosen: "SourceName") -> None:
        typer.echo(_format_source(found, chosen), err=True)

    with progress_bar("decoding", hide=json) as bar:
        done = messages.reprocess(
            Project.load(lake),
            source,
            dry_run=dry_run,
            on_source=tell_source,
            on_progress=lambda count, total: _advance(bar, count, total, began),
        )
    if json:
        print_object(_as_object(done, dry_run, time.monotonic() - began))
        return
    if dry_run:
        _print_changes(done.before, done.after)
    print_text(_format_result(done, dry_run))


def _advance(bar: AdvanceBar, done: int, total: int, began: float) -> None:
    rate = done / max(time.monotonic() - began, 1e-3)
    bar(done, total, f"{counted(done, 'sample')}, {rate:,.0f}/s")


def _format_source(found: "Candidates", chosen: "SourceName") -> str:
    times = {"samples": found.samples_since, "log": found.log_since}
    since = times.pop(chosen)
    ((other, before),) = times.items()
    text = f"reading {chosen}, from {_format_time(since)} on"
    return text if before is None else f"{text} ({other}: from {_format_time(before)} on)"


def _format_time(micros: int | None) -> str:
    if micros is None:
        return "its start"
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _format_result(done: "ReprocessResult", dry_run: bool) -> str:
    """Return the line for people, with one part per table, then the rows that stay."""
    made = "would be made again" if dry_run else "made again"
    parts: list[str] = []
    for name, change in done.tables.items():
        rows = counted(change.after, "row") if not parts else f"{change.after:,}"
        how = f" {made} from {done.source}" if not parts else ""
        parts.append(f"{name}: {rows}{how} (was {change.before:,})")
    text = ", ".join(parts)
    older = sum(change.older for change in done.tables.values())
    newer = sum(change.newer for change in done.tables.values())
    if older:
        text += f"; {counted(older, 'row')} older than the source {_stay(older)}"
    if newer:
        text += f"; {counted(newer, 'row')} just appended {_stay(newer)}"
    return text


def _stay(count: int) -> str:
    return "stays" if count == 1 else "stay"


def _print_changes(before: "Counts", after: "Counts") -> None:
    """Print rows by decoder and failures by reason, as they are and as they would be."""
    from rich.table import Table

    decoders = Table("decoder", "table")
    for column in ("now", "then"):
        decoders.add_column(column, justify="right")
    for key in sorted({*before.decoders, *after.decoders}):
        decoder, table = key
        counts = (before.decoders[key], after.decoders[key])
        decoders.add_row(escape(decoder), table, *(f"{count:,}" for count in counts))
    print_table(decoders)
    both = before.reasons + after.reasons
    if not both:
        return
    reasons = Table("reason")
    for column in ("now", "then"):
        reasons.add_column(column, justify="right")
    for reason, _ in both.most_common(PRINTED_REASONS):
        counts = (before.reasons[reason], after.reasons[reason])
        reasons.add_row(escape(reason[:MAX_REASON]), *(f"{count:,}" for count in counts))
    print_table(reasons)
    if len(both) > PRINTED_REASONS:
        print_text(f"and {counted(len(both) - PRINTED_REASONS, 'reason')} more: --json")


def _as_object(done: "ReprocessResult", dry_run: bool, seconds: float) -> dict[str, Any]:
    def counts(of: "Counts") -> dict[str, Any]:
        decoders: dict[str, dict[str, int]] = {}
        for (decoder, table), count in sorted(of.decoders.items()):
            decoders.setdefault(decoder, {})[table] = count
        return {"decoders": decoders, "reasons": dict(of.reasons)}

    return {
        "source": done.source,
        "dry_run": dry_run,
        "samples": done.samples,
        "tables": {name: change._asdict() for name, change in done.tables.items()},
        "before": counts(done.before),
        "after": counts(done.after),
        "seconds": round(seconds, 3),
    }
