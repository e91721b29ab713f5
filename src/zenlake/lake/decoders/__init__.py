"""Decoders of payloads, selected by key, encoding and schema, for whole batches.

Knows the rules and the interface of decoders, each of which has its own file. Does not know Spark.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.checked import suggest
from zenlake.columnar.conform import conform, plain_schema
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.lake.decoders.values import (
    MAX_JSON_BYTES,
    MAX_PAYLOAD_BYTES,
    Decode,
    Decoded,
    decode_where,
    describe_error,
    fail_all,
)

__all__ = ["BUILT_IN", "NONE", "RULES", "Decode", "Decoded", "Decoders", "Rule"]

MAX_RULES = 1000
MAX_KEYS = 100_000  # Upper bound on keys whose matching rules are cached.
MAX_TRIES = 1000  # Calls of a failing user-defined decoder to find the rows at fault.

NONE = "none"
"Name of the rule that leaves samples out of both tables."
BUILT_IN = {
    "json": "jsontext",
    "text": "text",
    "number": "numeric",
    "cbor": "cbor",
    "protobuf": "protobuf",
    "cdr": "cdr",
    "serialized": "serialized",
}
"Module of each built-in decoder."


class Rule(NamedTuple):
    """Rule that selects the decoder `use`; a condition of None matches everything."""

    use: str
    "Name of a built-in decoder, or module:function."
    key: str | None = None
    "Key expression."
    encoding: str | None = None
    "Pattern of the encoding, in which `*` matches any text."
    schema: str | None = None
    "Pattern of the schema, in which `*` matches any text."
    arguments: Mapping[str, Any] = {}
    "Further arguments of the decoder."

    @classmethod
    def of(cls, raw: Mapping[str, Any], where: str = "[[decoders]]") -> "Rule":
        """From a section of lake.toml. ZError: it cannot be meant.

        >>> Rule.of({"encoding": "a/b", "use": "number", "type": "int8"}).arguments
        {'type': 'int8'}
        """
        chosen = {name: raw[name] for name in ("use", "key", "encoding", "schema") if name in raw}
        if any(type(text) is not str for text in chosen.values()) or "use" not in chosen:
            raise ZError(f"{where}: use, key, encoding and schema are texts, and use is needed")
        if len(chosen) == 1:
            raise ZError(f"{where}: say what it decodes: give a key, an encoding or a schema")
        if "key" in chosen:
            chosen["key"] = KeyExpr.autocanonize(chosen["key"])
        _check_use(chosen["use"], where)
        rest = {name: raw[name] for name in raw if name not in chosen}
        return cls(**chosen, arguments=rest)


RULES = (
    *(Rule("json", encoding=name) for name in ("application/json", "text/json", "*/*+json")),
    *(Rule("json", encoding=name) for name in ("application/integer", "application/float")),
    *(Rule("text", encoding=name) for name in ("zenoh/string", "text/*")),
    *(Rule("cbor", encoding=name) for name in ("application/cbor", "*/*+cbor")),
    Rule("protobuf", encoding="application/protobuf"),
    Rule("serialized", encoding="zenoh/serialized"),
    Rule("cdr", encoding="application/cdr"),
    Rule(
        "cdr", encoding="zenoh/bytes", key="*/**/$*::msg::dds_::$*_/*"
    ),  # Keys and encoding of rmw_zenoh.
)
"Built-in rules, tried after those of the user."


class Decoders:
    """Rules of the user and built-in rules, in the order in which they are tried."""

    def __init__(self, rules: Sequence[Mapping[str, Any]] = (), home: Path | str = ".") -> None:
        if len(rules) > MAX_RULES:
            raise ZError(f"[[decoders]]: {len(rules)} rules, more than {MAX_RULES}")
        named = (Rule.of(raw, f"[[decoders]] {at}") for at, raw in enumerate(rules, 1))
        self.rules = (*named, *RULES)
        self._home = Path(home)
        self._expressions = sorted({rule.key for rule in self.rules if rule.key is not None})
        self._matching: dict[str | None, int] = {}
        self._decoders: dict[int, Decode] = {}

    def check(self) -> None:
        """Raise ZError if a rule of the user cannot work; reads the files that the rules name."""
        for number, rule in enumerate(self.rules[: -len(RULES)], 1):
            try:
                make_decoder(rule, self._home)
            except Exception as error:
                raise ZError(f"[[decoders]] {number}: {describe_error(error)}") from error

    def decode(
        self, rows: pa.RecordBatch
    ) -> tuple[npt.NDArray[np.int64], pa.Array, pa.Array, pa.Array]:
        """Return the indices of rows with a decoder, and their JSON, decoder names and reasons.

        `rows` has at least key, payload, encoding and schema. A payload that cannot be decoded gets
        a reason and raises nothing.
        """
        places: list[npt.NDArray[np.int64]] = []
        parts: list[tuple[pa.Array, pa.Array, pa.Array]] = []
        for at, rule in self._groups(rows):
            whole = len(at) == rows.num_rows
            group = rows if whole else rows.take(pa.array(at))
            texts, reasons = self._decode_group(rule, group)
            name = pa.repeat(pa.scalar(self.rules[rule].use), len(at))
            places.append(at)
            parts.append((texts, name, reasons))
        if not parts:
            nothing = pa.nulls(0, pa.string())
            return np.zeros(0, np.int64), nothing, nothing, nothing
        if len(parts) == 1:
            return places[0], *parts[0]
        at = np.concatenate(places)
        order = np.argsort(at)
        texts, name, reasons = (
            pa.concat_arrays(column).take(pa.array(order)) for column in zip(*parts, strict=True)
        )
        return at[order], texts, name, reasons

    # ---- selecting a rule

    def _groups(self, rows: pa.RecordBatch) -> list[tuple[npt.NDArray[np.int64], int]]:
        """Group rows by encoding, schema and rule; return the rows and the rule of each group."""
        keys, key_codes = _dictionary_codes(rows.column("key"))
        encodings, encoding_codes = _dictionary_codes(rows.column("encoding"))
        schemas, schema_codes = _dictionary_codes(rows.column("schema"))
        sets = np.array([self._matching_bits(key) for key in keys], np.int64)
        distinct, set_codes = np.unique(sets, return_inverse=True)
        combined = set_codes[key_codes] * len(encodings) + encoding_codes
        combined = combined * len(schemas) + schema_codes
        found, group_of, counts = np.unique(combined, return_inverse=True, return_counts=True)
        order = np.argsort(group_of, kind="stable")
        groups = []
        for code, at in zip(found.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True):
            rest, schema = divmod(code, len(schemas))
            matching, encoding = divmod(rest, len(encodings))
            rule = self._find_rule(int(distinct[matching]), encodings[encoding], schemas[schema])
            if rule is not None:
                groups.append((at, rule))
        return groups

    def _matching_bits(self, key: str | None) -> int:
        """Return the bit set of the key expressions that match a key."""
        known = self._matching.get(key)
        if known is None:
            if len(self._matching) >= MAX_KEYS:
                self._matching.clear()
            known = sum(
                1 << at
                for at, expression in enumerate(self._expressions)
                if key is not None and intersects(expression, key)
            )
            self._matching[key] = known
        return known

    def _find_rule(self, matching: int, encoding: str | None, schema: str | None) -> int | None:
        for number, rule in enumerate(self.rules):
            if (
                (rule.key is None or matching >> self._expressions.index(rule.key) & 1)
                and (rule.encoding is None or _matches(rule.encoding, encoding or "zenoh/bytes"))
                and (rule.schema is None or _matches(rule.schema, schema or ""))
            ):
                return None if rule.use == NONE else number
        return None

    # ---- decoding

    def _decode_group(self, number: int, rows: pa.RecordBatch) -> Decoded:
        payloads = rows.column("payload").fill_null(b"")
        if number not in self._decoders:
            try:
                self._decoders[number] = make_decoder(self.rules[number], self._home)
            except Exception as error:  # noqa: BLE001  # a user's module may raise anything
                return fail_all(len(payloads), describe_error(error))
        decode = self._decoders[number]
        short = pc.binary_length(payloads).to_numpy(zero_copy_only=False) <= MAX_PAYLOAD_BYTES
        if short.all():
            return decode(payloads, rows)
        selected = pa.array(short)
        return decode_where(
            short,
            lambda: decode(payloads.filter(selected), rows.filter(selected)),
            f"the payload is larger than {MAX_PAYLOAD_BYTES >> 20} MiB",
        )


def make_decoder(rule: Rule, home: Path) -> Decode:
    """Return the decoder of a rule. Raises ZError, or any error of a user's module."""
    if rule.use == NONE:
        return lambda payloads, rows: fail_all(len(payloads), "left out")
    if ":" in rule.use:
        return partial(
            _call_user_decoder, partial(_find_function(rule.use, home), **rule.arguments)
        )
    try:
        make = importlib.import_module(f"{__name__}.{BUILT_IN[rule.use]}").decoder
    except ImportError as error:
        raise ZError(f"{rule.use}: {error}: pip install 'zenlake[lake]'") from None
    _check_arguments(rule, make)
    return make(home, **rule.arguments)  # type: ignore[no-any-return]


def _check_use(use: str, where: str) -> None:
    names = (*BUILT_IN, NONE)
    if use in names or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", use):
        return
    hint = suggest(use, names)
    raise ZError(f"{where}: no decoder is {use!r}: {hint}, or write module:function")


def _check_arguments(rule: Rule, make: Callable[..., Decode]) -> None:
    known = inspect.signature(make).parameters
    names = [name for name in known if name != "home"]
    for name, value in rule.arguments.items():
        if name not in names:
            hint = suggest(name, [*names, "key", "encoding", "schema"])
            raise ZError(f"{rule.use} takes no {name!r}: {hint}")
        if type(value) is not str:
            raise ZError(f"{name} of {rule.use} is a text, not {value!r}")
    for name in names:
        if known[name].default is inspect.Parameter.empty and name not in rule.arguments:
            raise ZError(f"{rule.use} needs {name!r}")


# ---- users' decoders


def _find_function(use: str, home: Path) -> Callable[..., Any]:
    """Return `module:function` from a file beside lake.toml, else from an importable module."""
    module, _, name = use.partition(":")
    path = home.joinpath(*module.split(".")).with_suffix(".py")
    loaded = (
        _load_module(module, path.absolute()) if path.is_file() else importlib.import_module(module)
    )
    found = getattr(loaded, name, None)
    if not callable(found):
        raise ZError(f"there is no function {name!r} in {getattr(loaded, '__file__', module)}")
    return found  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _load_module(module: str, path: Path) -> Any:
    """Load a module by its file under a unique name: two lakes may both have a decoders.py."""
    folder = str(path.parents[module.count(".")])
    if folder not in sys.path:
        sys.path.append(folder)  # For imports of neighbouring files.
    name = f"zenlake_{sha256(str(path).encode()).hexdigest()[:16]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _call_user_decoder(
    function: Callable[..., Any], payloads: pa.Array, rows: pa.RecordBatch
) -> Decoded:
    """Decode by a user's function; if it raises, bisect the batch so that few rows fail."""
    plain = conform(rows, plain_schema(rows.schema))
    tries = MAX_TRIES
    waiting = [(0, len(payloads))]
    done: list[Decoded] = []
    while waiting:
        at, count = waiting.pop()
        tries -= 1
        try:
            returned = function(payloads.slice(at, count), plain.slice(at, count))
        except Exception as error:  # noqa: BLE001  # a user's function may raise anything
            if count == 1 or tries <= 0:
                done.append(fail_all(count, describe_error(error)))
            else:
                half = count // 2
                waiting += [(at + half, count - half), (at, half)]
        else:
            done.append(_check_returned(returned, count))
    texts, reasons = (pa.concat_arrays(column) for column in zip(*done, strict=True))
    return texts, reasons


def _check_returned(returned: Any, rows: int) -> Decoded:
    """Check the result of a user's function: texts, or texts and reasons."""
    parts = returned if isinstance(returned, tuple) else (returned, pa.nulls(rows))
    try:
        texts, reasons = (_as_strings(part, rows) for part in parts)
    except (ValueError, TypeError):  # Includes the errors of Arrow.
        return fail_all(
            rows, f"the decoder did not return {rows} texts, or a tuple of texts and reasons"
        )
    long = pc.fill_null(pc.greater(pc.binary_length(texts), MAX_JSON_BYTES), False)
    texts = pc.if_else(pc.or_(long, reasons.is_valid()), pa.scalar(None, pa.string()), texts)
    reasons = pc.coalesce(
        reasons,
        pc.if_else(long, f"as JSON the value is larger than {MAX_JSON_BYTES >> 20} MiB", None),
        pc.if_else(texts.is_null(), "the decoder returned nothing", None),
    )
    return texts, reasons


def _as_strings(column: Any, rows: int) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array) or len(column) != rows:
        raise ValueError
    return column.cast(pa.string())


# ---- matching


def _dictionary_codes(column: pa.Array) -> tuple[list[str | None], npt.NDArray[np.int64]]:
    """Return the texts, and the index of the text of each row."""
    encoded = column.dictionary_encode()
    texts = [*encoded.dictionary.to_pylist(), None]
    codes = encoded.indices.fill_null(len(texts) - 1) if encoded.null_count else encoded.indices
    return texts, codes.to_numpy(zero_copy_only=False).astype(np.int64)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*"), re.DOTALL)


def _matches(pattern: str, text: str) -> bool:
    """Tell whether a text matches a pattern in which `*` matches any text."""
    return _pattern(pattern).fullmatch(text) is not None
