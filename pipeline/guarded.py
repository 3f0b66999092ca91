"""Expressions of the settings that may fail on a row, evaluated so that the row can be told and the stream goes on.

Spark's SQL is ANSI SQL: casting 'abc' to a number, an overflow or an unreadable date is an error, and ends a stream at the
first such row, each time anew. NULL in its place would be worse: as a value it is a tombstone. Catalyst, Spark's planner,
has an expression of its own for this, TryEval, whose value is NULL if its child failed. Around a struct of the expression
it tells the two apart: the struct is NULL only if the expression failed, the field in it is NULL if that is its value.

Two things about Catalyst are made use of, both held by tests:

- Subexpressions that several expressions share are evaluated once and before them, outside of TryEval, where they would
  fail. What stands in a branch of CASE WHEN is not, as it may not be needed.
- An expression that was resolved against some columns of a table can be evaluated where there are more: columns are known
  by number. So `struct(*)` means what the settings can see.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_CANNOT_FAIL = {"AttributeReference", "Coalesce", "CreateNamedStruct", "GetStructField", "Literal", "StructsToJson"}
_OF_MANY_ROWS = {"Aggregate", "Generate", "Window"}
FIELD = "it"
"""The field that holds a guarded expression's value."""


def of_one_row(visible: DataFrame, column: Column) -> bool:
    """Whether the column is an expression over one row that gives one value: no aggregate, window or generator."""
    plan = _analyzed(visible, column)
    while plan.nodeName() not in _OF_MANY_ROWS:
        if plan.children().isEmpty():
            return True
        plan = plan.children().head()
    return False


def cannot_fail(visible: DataFrame, column: Column) -> bool:
    """Whether the column, resolved against `visible`, has a value for every row, so that it needs no guard.

    So it is with columns as they are, constants, casts to text and structs as JSON, and what is made of these.
    """
    return _cannot_fail(_resolved(visible, column))


def _cannot_fail(expression: JavaObject) -> bool:
    kind = expression.getClass().getSimpleName()
    if kind not in _CANNOT_FAIL and not (kind == "Cast" and expression.dataType().typeName() == "string"):
        return False
    children = expression.children()
    return all(_cannot_fail(children.apply(number)) for number in range(children.size()))


def guarded(visible: DataFrame, column: Column, condition: Column | None) -> Column:
    """A struct with the column's value as FIELD; NULL where evaluating it failed, or the condition is not true.

    Args:
        visible: the columns that the expression may name.
        condition: of the DataFrame that the result goes into, which has at least those columns; None: always.
    """
    jvm = visible.sparkSession._jvm  # noqa: SLF001 - Catalyst's expressions have no Python side
    assert jvm is not None, "a session has a JVM"
    catalyst, bridge = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic.ExpressionUtils
    struct = _resolved(visible, F.struct(column.alias(FIELD)))
    tried = Column(bridge.column(catalyst.TryEval(struct)))
    # Without a condition, one that is always true and that the optimizer cannot know to be.
    return F.when(F.spark_partition_id() >= 0 if condition is None else condition, tried)


def _resolved(visible: DataFrame, column: Column) -> JavaObject:
    """The column as Catalyst's expression, its names resolved."""
    return _analyzed(visible, column).projectList().head().child()


def _analyzed(visible: DataFrame, column: Column) -> JavaObject:
    return visible.select(column.alias(FIELD))._jdf.queryExecution().analyzed()  # noqa: SLF001
