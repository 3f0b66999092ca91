"""Checks that the bytes of values are exactly what Avro prescribes for a schema.

fastavro accepts some bytes that no encoder writes, and makes a wrong row of them: a negative index of a union, a
boolean of 2, a number with too many bits. So each value is checked before fastavro decodes it. The schema becomes a
program, a list of numbers, that a compiled function runs on the bytes (`schemas.avro.check_kernels`). For a value of 19
fields, the check needs a few percent of the time that fastavro needs.

The check includes those logical types of which fastavro accepts wrong values: it takes a negative time of day for
another time, and a decimal without bytes for 0. fastavro checks what is left: whether strings are in UTF-8, and whether
a moment is in the years 1 to 9999.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.avro.avro_schema import AvroSchema, Node, children, kind_of
from schemas.avro.check_kernels import (
    BLOCKS,
    BOOLEAN,
    END,
    ENUM,
    FITS,
    FIXED,
    FORM,
    FRAME,
    INDEX,
    INT,
    JUMP,
    LENGTH,
    LONG,
    NEXT,
    NUMBER,
    RANGE,
    SIZE,
    TIME,
    TOO_LONG,
    TOO_SHORT,
    TRUTH,
    UNION,
    UUID,
    check_values,
)
from schemas.avro.logical_types import logical_type
from schemas.decoder import value_bytes

_PRIMITIVES = {
    "null": [], "boolean": [BOOLEAN], "int": [INT], "long": [LONG], "float": [FIXED, 4], "double": [FIXED, 8],
    "bytes": [LENGTH], "string": [LENGTH],
}  # fmt: skip

_LOGICAL_TYPES = {
    "date": [RANGE, -719_162, 2_932_896, TIME],  # from 0001-01-01 to 9999-12-31
    "time-millis": [RANGE, 0, 86_399_999, TIME],
    "time-micros": [RANGE, 0, 86_399_999_999, TIME],
    "decimal": [RANGE, 1, 2**31, FORM],  # of its length
    "uuid": [UUID],
}
"""What else a value of a logical type must be, after the instruction of its type."""

_REASONS = {
    TOO_SHORT: "too_short: the value ends before all of its fields",
    TOO_LONG: "too_long: the value has more bytes than its schema describes",
    NUMBER: "malformed: a number has more bits than its type allows, or more bytes than it needs",
    TRUTH: "malformed: a boolean is neither 0 nor 1",
    INDEX: "malformed: a union or an enum has no type or symbol with the index in the value",
    SIZE: "malformed: a length is negative, or a block of items has another length than the value says",
    TIME: "out_of_range: a date is outside of the years 1 to 9999, or a time of day is outside of a day",
    FORM: "malformed: a decimal has no bytes, or a uuid has another form than 8-4-4-4-12 hexadecimal digits",
}


class ValueCheck:
    """The check of values of one schema, which must be finite (`avro_schema.check_finite`)."""

    def __init__(self, schema: AvroSchema) -> None:
        self.schema = schema
        program: list[int] = []
        self._depth = _append(schema, schema.root, program)
        self._program = np.array([*program, END], np.int64)

    def reasons(self, values: pa.BinaryArray, rows: npt.NDArray[np.int64], prefix: int = 0) -> dict[int, str]:
        """By row, the reason why the bytes of a value do not fit the schema.

        Args:
            rows: the rows to check; none of them is null.
            prefix: the number of bytes before each value.
        """
        data, starts, ends = value_bytes(values)
        verdicts = np.empty(len(rows), np.int8)
        frames = np.empty(FRAME * self._depth, np.int64)
        check_values(data, starts[rows] + prefix, ends[rows], self._program, frames, verdicts)
        bad = np.flatnonzero(verdicts != FITS)
        return {int(row): _REASONS[int(verdict)] for row, verdict in zip(rows[bad], verdicts[bad], strict=True)}


def _append(schema: AvroSchema, node: Node, program: list[int]) -> int:
    """Append the instructions for a part of the schema, and return the levels of nested arrays and maps in it."""
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind == "fixed":
        program += [FIXED, node["size"]]
    elif kind == "enum":
        program += [ENUM, len(node["symbols"])]
    elif kind == "record":
        return max([0, *(_append(schema, each, program) for each in children(node))])
    elif kind == "union":
        return _append_union(schema, node, program)
    elif kind in ("array", "map"):
        start = len(program)
        program += [BLOCKS, 0, *([LENGTH] if kind == "map" else [])]
        (item,) = children(node)
        depth = _append(schema, item, program)
        program += [NEXT, start]
        program[start + 1] = len(program)
        return depth + 1
    else:
        program += _PRIMITIVES[kind] + _LOGICAL_TYPES.get(logical_type(node), [])
    return 0


def _append_union(schema: AvroSchema, union: Node, program: list[int]) -> int:
    branches = list(children(union))
    places = len(program) + 2
    program += [UNION, len(branches), *[0] * len(branches)]
    jumps = []
    depth = 0
    for number, branch in enumerate(branches):
        program[places + number] = len(program)
        depth = max(depth, _append(schema, branch, program))
        program += [JUMP, 0]
        jumps.append(len(program) - 1)
    for place in jumps:
        program[place] = len(program)
    return depth
