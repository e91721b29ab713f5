"""Migration of tables that an older zenlake wrote; tables of a newer zenlake are refused.

Knows the versions of the tables and the steps between them. Adding a column changes metadata only.
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
"""Steps from a version of a table to the next, for changes beyond added columns.

A step may run again after a crash: the new version is written only after the step has ended.
"""
_migrating: set["DeltaStore"] = set()  # Stores whose steps run now, so that steps can commit.


class NewerTable(ZError):
    """Table that a newer zenlake has written."""


class WrongTable(ZError):
    """Folder that holds another table than its name says."""


def read_version(table: DeltaTable) -> int:
    """Return the version of the columns of a table; 0 if the table does not record one."""
    text = table.metadata().configuration.get(SCHEMA_PROPERTY)
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def prepare(store: "DeltaStore") -> bool:
    """Migrate an existing table so that it can be written; return whether anything changed.

    NewerTable: a newer zenlake wrote it. WrongTable: a column has an unexpected type.
    """
    if store in _migrating:
        return False  # A migration step is committing.
    table = DeltaTable(store.path)
    version = read_version(table)
    if version > SCHEMA_VERSION:
        raise NewerTable(
            f"{store.path} has version {version} of its columns, and this zenlake writes "
            f"{SCHEMA_VERSION}: install the newer zenlake that made it, or name another folder"
        )
    changed = _add_columns(table, store.table)
    _migrating.add(store)
    try:
        for past in range(version, SCHEMA_VERSION):
            if step := STEPS.get((store.table.name, past)):
                step(store)
    finally:
        _migrating.discard(store)
    if version < SCHEMA_VERSION:
        DeltaTable(store.path).alter.set_table_properties(
            {SCHEMA_PROPERTY: str(SCHEMA_VERSION)}, raise_if_not_exists=False
        )
    return changed or version < SCHEMA_VERSION


def _add_columns(table: DeltaTable, wanted: TableDefinition) -> bool:
    """Append missing columns as nullable ones; return whether any was missing."""
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
