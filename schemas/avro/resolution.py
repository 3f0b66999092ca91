"""Checks the cases of Avro's schema resolution that fastavro leaves open, and gives fastavro schemas that it resolves as
Avro prescribes.

If the reader's schema has a union of several types, fastavro returns the name of a named type only if the writer's
schema has a union, too. If not, a record could be taken for a map, an enum for a string, and a fixed for bytes. So a
writer's schema is refused if it has a named type where the reader has such a union, and the union has more than one
branch of the same kind. The writer can then register its schema with a union instead.

If several branches of the reader's union have the same name in different namespaces, fastavro takes the first of them,
although Avro prescribes the one with the same namespace. So the decoder gives these types other names in both schemas
(`avro_schema.whole_name`). fastavro also takes the first branch that has the name as an alias. A writer's schema for
which this is not the branch with the same full name is refused. If both schemas are equal, fastavro resolves nothing,
and every value says its branch.

fastavro makes the object of the writer's logical type, whatever the reader's logical type is. So a writer's schema is
refused if such an object has another meaning in the reader's column, or none (`schemas.avro.logical_types`).

If a writer has a field of the reader and also a field with its alias, fastavro takes the alias, and can fail. Avro
forbids this, so such a schema is refused.

fastavro takes the first branch of the reader's union to which it can promote the value, although Avro prescribes the
branch of the same type, if there is one. So the reader's unions are sorted: if the writer's schema has an int or a long,
the branches of this type come first. For string and bytes, no order is right for both. A writer's schema with the second
of them is refused. Nor is an order right for an int and a long, if the reader's union has a float or double before a
long, but no int. Avro prescribes the float or double for the int. Such a writer's schema is refused, too.

The object that fastavro returns then says the branch (`avro_columns._union`). If only one side has a logical type, the
object can be that of another branch. For example, fastavro returns an int for a long, also if the reader's only long is a
timestamp, and the union also has an int. Such a writer's schema is refused.

In unions, fastavro fails if one schema has a named type by its name and the other has its definition. So in both schemas,
the definition replaces each name. Types do not contain themselves (`avro_schema.check_finite`), so this has an end.

fastavro rounds decimals to the writer's precision, so the writer's precision is raised. The reader's column refuses
numbers with too many digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schemas.avro.avro_schema import AvroSchema, AvroSchemaError, Node, kind_of, with_parts
from schemas.avro.logical_types import (
    agrees,
    can_be_read_as,
    logical_type,
    meaning,
    python_type,
    raw_python_type,
)

_KINDS = {"record": ("record", "map"), "enum": ("enum", "string"), "fixed": ("fixed", "bytes")}
"""By kind of a named type, the kinds of branches whose values fastavro returns as the same Python type."""
_PRIMITIVE = ("boolean", "int", "long", "float", "double", "bytes", "string")
_NO_ROUNDING = 1_000_000
"""More digits than a value has."""


class BranchNameError(AvroSchemaError):
    """fastavro would take another branch of a union than the branch with the name of the value's type."""


def check_branches(writer: AvroSchema, reader: AvroSchema) -> None:
    """Check that each value of the writer's schema says which branch of the reader's unions it has, and that it has the
    meaning of the reader's logical types.

    Raises:
        BranchNameError: fastavro would take a value of one type for another type of the reader's union.
        AvroSchemaError: a value does not.
    """
    _Check(writer, reader).check(writer.root, reader.root)


class _Check:
    """Checks the parts of a writer's schema."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer
        self._reader = reader
        self._integers = _integers(writer)
        self._seen = set[tuple[int, int, bool]]()

    def check(self, written: Node, wanted: Node, *, in_union: bool = False) -> None:
        """Check a part. in_union: the writer has a union, so fastavro returns the name of a named type."""
        writer, reader, seen = self._writer, self._reader, self._seen
        written, wanted = writer.resolved(written), reader.resolved(wanted)
        if (id(written), id(wanted), in_union) in seen:
            return
        seen.add((id(written), id(wanted), in_union))
        kind, wanted_kind = kind_of(written), kind_of(wanted)
        if kind == "union":
            for branch in written:
                self.check(branch, wanted, in_union=True)
        elif wanted_kind == "union":
            branches = [each for each in map(reader.resolved, wanted) if kind_of(each) != "null"]
            alike = [each for each in branches if kind_of(each) in _KINDS.get(kind, ())]
            if not in_union and len(branches) > 1 and len(alike) > 1:
                raise AvroSchemaError(f"it has {written['name']} where the schema of the settings has a union")
            named = [each for each in branches if kind in _KINDS and kind_of(each) in _KINDS]
            names = [each["name"] for each in named if is_same_name(written, each)]
            if any(name == written["name"] != names[0] for name in names):
                raise BranchNameError(f"the union of the settings has {names[0]} before {written['name']}")
            _check_order(written, branches)
            if len(branches) > 1 and kind in _PRIMITIVE:
                branches = _branches_of_object(written, branches, self._integers)
            for each in branches:
                # fastavro's object finds the branch by its type, so the branches of other objects do not matter.
                if len(branches) == 1 or kind == "fixed" or python_type(written) == python_type(each):
                    self.check(written, each)
        elif not agrees(written, wanted):
            raise AvroSchemaError(
                f"it has {logical_type(written) or kind} where the schema of the settings has"
                f" {logical_type(wanted) or wanted_kind}"
            )
        elif kind == wanted_kind == "record" and is_same_name(written, wanted):
            by_name = {field["name"]: field["type"] for field in written["fields"]}
            for field in wanted["fields"]:
                names = [name for name in dict.fromkeys((field["name"], *field.get("aliases", ()))) if name in by_name]
                if len(names) > 1:
                    raise AvroSchemaError(
                        f"it has {' and '.join(names)}, which are one field in the schema of the settings"
                    )
                for name in names:
                    self.check(by_name[name], field["type"])
        elif kind == wanted_kind == "array":
            self.check(written["items"], wanted["items"])
        elif kind == wanted_kind == "map":
            self.check(written["values"], wanted["values"])


def _check_order(written: Node, branches: Sequence[Node]) -> None:
    """Check that fastavro takes the branch of the reader's union that has the same type as the writer's string or bytes. For
    values with a logical type, the object says the branch."""
    plain = [kind_of(each) for each in branches if not logical_type(each)]
    same = "" if logical_type(written) else kind_of(written)
    other = {"string": "bytes", "bytes": "string"}.get(same)
    if other in plain and same in plain and plain.index(other) < plain.index(same):
        raise AvroSchemaError(f"it has {same} where a union of the settings has {other} before {same}")


def _branches_of_object(written: Node, branches: Sequence[Node], integers: Sequence[str]) -> list[Node]:
    """The branch whose column gets the object that fastavro returns for a primitive type of the writer; none if fastavro
    refuses each value.

    Args:
        integers: the integer types of the writer's schema.

    Raises:
        AvroSchemaError: Avro prescribes the column of another branch.
    """
    possible = [each for each in branches if can_be_read_as(written, each)]
    if not possible:
        return []
    read_as = kind_of(_sorted(possible, integers)[0])
    same = python_type(written) == raw_python_type(written)  # as without a logical type
    found = raw_python_type(written, read_as) if same else python_type(written)
    unnamed = [each for each in branches if kind_of(each) not in _KINDS]
    taken = [
        *(each for each in unnamed if python_type(each) == found),
        *(each for each in unnamed if logical_type(each) and raw_python_type(each) == found),
    ]
    right = [each for each in possible if kind_of(each) == kind_of(written)] or possible[:1]
    if not taken or _column_of(taken[0]) not in map(_column_of, right):
        raise AvroSchemaError(
            f"it has {logical_type(written) or kind_of(written)} where a union of the settings has"
            f" {logical_type(right[0]) or kind_of(right[0])}"
        )
    return taken[:1]


def _column_of(node: Node) -> tuple[str, str]:
    """What is equal for two branches that have one column."""
    return python_type(node), meaning(node)


def writer_in_full(schema: AvroSchema) -> Node:
    """The writer's schema for fastavro: each named type is written out, and no decimal is rounded."""
    return in_full(schema, lambda node: {**node, "precision": _NO_ROUNDING} if _is_decimal(node) else node)


def reader_in_full(schema: AvroSchema, writer: AvroSchema) -> Node:
    """The reader's schema for fastavro: each named type is written out, and unions are sorted for the writer."""
    integers = _integers(writer)
    return in_full(schema, lambda node: _sorted(node, integers) if isinstance(node, list) else node)


def _sorted(branches: Sequence[Node], integers: Sequence[str]) -> list[Node]:
    """The branches of a union of the reader, in the order in which fastavro must try them."""
    first = {kind: place for place, kind in enumerate(integers)}
    return sorted(branches, key=lambda each: first.get(kind_of(each), len(first)))


def _integers(schema: AvroSchema) -> list[str]:
    """Those of the types int and long that the schema has."""
    kinds = schema.kinds()
    return [kind for kind in ("int", "long") if kind in kinds]


def in_full(schema: AvroSchema, changed: Callable[[Node], Node]) -> Node:
    """The schema with the definition of each named type in place of its name, and with changed parts."""
    known: dict[str, Node] = {}

    def full(node: Node) -> Node:
        if isinstance(node, str):
            if node not in schema.named:
                return node
            if node not in known:
                known[node] = full(schema.named[node])
            return known[node]
        return changed(with_parts(node, full))

    return full(schema.root)


def _is_decimal(node: Node) -> bool:
    return isinstance(node, dict) and node.get("logicalType") == "decimal"


def is_same_name(written: Node, wanted: Node) -> bool:
    """Whether fastavro takes one for the other."""
    name = str(written["name"])
    plain = name.rpartition(".")[2]
    return plain == wanted["name"].rpartition(".")[2] or bool({name, plain} & set(wanted.get("aliases", ())))
