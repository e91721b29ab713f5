"""Tables that an older zenlake made are brought to the columns of this one; newer ones are refused.

Knows versions of the tables and the steps between them. Adding a column is metadata only.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from deltalake import DeltaTable, Field, Schema

from zenlake.errors import ZError
from zenlake.lake.tables.definitions import SCHEMA_PROPERTY, SCHEMA_VERSION, TableDefinition

if TYPE_CHECKING:
    from zenlake.lake.tables.delta import DeltaStore

Step = Callable[["DeltaStore"], None]

STEPS: dict[tuple[str, int], Step] = {}
"""What is done with a table of a version, beyond adding columns, to make it the next version's.

A step may be repeated: the version is written only when it is through.
"""
_under_way: set["DeltaStore"] = set()


class NewerTable(ZError):
    """A table that a newer zenlake has written."""


class WrongTable(ZError):
    """A folder that holds another table than its name says."""


def version_of(table: DeltaTable) -> int:
    """The version of the columns of a table; 0: it does not say."""
    said = table.metadata().configuration.get(SCHEMA_PROPERTY)
    return int(said) if said is not None and said.isascii() and said.isdigit() else 0


def prepared(store: "DeltaStore") -> bool:
    """Makes a table that exists fit to be written; whether anything had to change.

    NewerTable: a newer zenlake wrote it. WrongTable: a column has another type than it should.
    """
    if store in _under_way:
        return False  # a step commits
    table = DeltaTable(store.path)
    version = version_of(table)
    if version > SCHEMA_VERSION:
        raise NewerTable(
            f"{store.path} has version {version} of its columns, and this zenlake writes "
            f"{SCHEMA_VERSION}: install the newer zenlake that made it, or name another folder"
        )
    changed = _add_columns(table, store.table)
    _under_way.add(store)
    try:
        for past in range(version, SCHEMA_VERSION):
            STEPS.get((store.table.name, past), _nothing)(store)
    finally:
        _under_way.discard(store)
    if version < SCHEMA_VERSION:
        DeltaTable(store.path).alter.set_table_properties(
            {SCHEMA_PROPERTY: str(SCHEMA_VERSION)}, raise_if_not_exists=False
        )
    return changed or version < SCHEMA_VERSION


def _nothing(store: "DeltaStore") -> None:
    """Columns were all that changed."""


def _add_columns(table: DeltaTable, wanted: TableDefinition) -> bool:
    """Those that are missing, nullable, behind the others; their old rows are null."""
    there = {field.name: field for field in table.schema().fields}
    missing: list[Field] = []
    for field in Schema.from_arrow(wanted.schema).fields:
        known = there.get(field.name)
        if known is None:
            missing.append(Field(field.name, field.type, nullable=True))
        elif known.type != field.type:
            raise WrongTable(
                f"{wanted.name}: column {field.name!r} is {known.type}, not {field.type}: "
                "the folder holds another table; name another one"
            )
    if missing:
        table.alter.add_columns(missing)
    return bool(missing)
