"""Checks one case of Avro's schema resolution that fastavro leaves open.

If the reader's schema has a union of several types, fastavro returns the name of a named type only if the writer's
schema has a union, too. If not, a record could be taken for a map, an enum for a string, and a fixed for bytes. So a
writer's schema is refused if it has a named type where the reader has such a union, and the union has more than one
branch of the same kind. The writer can then register its schema with a union instead.
"""

from __future__ import annotations

from schemas.avro.avro_schema import AvroSchema, AvroSchemaError, Node, kind_of

_KINDS = {"record": ("record", "map"), "enum": ("enum", "string"), "fixed": ("fixed", "bytes")}
"""By kind of a named type, the kinds of branches whose values fastavro returns as the same Python type."""


def check_branches(writer: AvroSchema, reader: AvroSchema) -> None:
    """Check that each value of the writer's schema says which branch of the reader's unions it has.

    Raises:
        AvroSchemaError: a value does not.
    """
    _check(writer, writer.root, reader, reader.root, set())


def _check(writer: AvroSchema, written: Node, reader: AvroSchema, wanted: Node, seen: set[tuple[int, int]]) -> None:
    written, wanted = writer.resolved(written), reader.resolved(wanted)
    if (id(written), id(wanted)) in seen:
        return
    seen.add((id(written), id(wanted)))
    kind, wanted_kind = kind_of(written), kind_of(wanted)
    if kind == "union":
        for branch in written:
            if wanted_kind != "union":
                _check(writer, branch, reader, wanted, seen)
            for each in wanted if wanted_kind == "union" else ():
                _check(writer, branch, reader, each, seen)
    elif wanted_kind == "union":
        branches = [reader.resolved(each) for each in wanted]
        alike = [each for each in branches if kind_of(each) in _KINDS.get(kind, ())]
        if len([each for each in branches if kind_of(each) != "null"]) > 1 and len(alike) > 1:
            raise AvroSchemaError(f"it has {written['name']} where the schema of the settings has a union")
        for each in branches:
            _check(writer, written, reader, each, seen)
    elif kind == wanted_kind == "record":
        by_name = {field["name"]: field["type"] for field in written["fields"]}
        for field in wanted["fields"]:
            for name in (field["name"], *field.get("aliases", ())):
                if name in by_name:
                    _check(writer, by_name[name], reader, field["type"], seen)
    elif kind == wanted_kind == "array":
        _check(writer, written["items"], reader, wanted["items"], seen)
    elif kind == wanted_kind == "map":
        _check(writer, written["values"], reader, wanted["values"], seen)
