"""Evaluates expressions of the settings that may fail on a row, so that such a row is found and the stream continues.

Spark's SQL is ANSI SQL: casting 'abc' to a number, an overflow or an unreadable date is an error, and ends a stream at
the first such row, again after each restart. NULL instead of an error would be worse: a NULL value is a tombstone.
Catalyst, Spark's planner, has the expression TryEval for this: its value is NULL if its child failed. TryEval around a
struct of the expression distinguishes failure from NULL: the struct is NULL only if the expression failed, its field is
NULL if the value is NULL.

The module relies on two properties of Catalyst, and tests check both:

- Subexpressions that several expressions share are evaluated once and before them, outside of TryEval, where they would
  fail. An expression in a branch of CASE WHEN is not, because it may not be needed.
- An expression that was resolved against some columns of a table can be evaluated where there are more: columns are known
  by number. So `*` means what the settings can see, whatever columns of ours the rows have by then. That holds only for
  the resolved expression: the same text given to Spark once more would be resolved against all that is there.
"""

from __future__ import annotations

from functools import cached_property

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

_CANNOT_FAIL = {"AttributeReference", "Coalesce", "CreateNamedStruct", "GetStructField", "Literal", "StructsToJson"}
_OF_MANY_ROWS = {"Aggregate", "Generate", "Window"}
FIELD = "it"
"""The field that holds a guarded expression's value."""


class Resolved:
    """A column as Catalyst's expression, its names resolved against the columns that it may name."""

    def __init__(self, visible: DataFrame, column: Column) -> None:
        """
        Args:
            visible: has the columns that the expression may name.

        Raises:
            AnalysisException: it names others, or is none.
        """
        self._visible = visible
        self._selected = visible.select(column.alias(FIELD))
        self._plan = self._selected._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no Python side

    @cached_property
    def type(self) -> DataType:
        """The type of its value."""
        return self._selected.schema[FIELD].dataType

    def cast(self, to: str) -> Resolved:
        """The same, cast."""
        return Resolved(self._visible, self.plain().cast(to))

    def is_of_one_row(self) -> bool:
        """Whether it is an expression over one row that gives one value: no aggregate, window or generator."""
        plan = self._plan
        while plan.nodeName() not in _OF_MANY_ROWS:
            if plan.children().isEmpty():
                return True
            plan = plan.children().head()
        return False

    def refers_to(self, name: str) -> bool:
        """Whether a column of this name is looked at."""
        columns = self._expression.references().toSeq()
        return any(columns.apply(number).name() == name for number in range(columns.size()))

    def cannot_fail(self) -> bool:
        """Whether it has a value for every row, so that it needs no guard.

        So it is with columns as they are, constants, casts to text and structs as JSON, and what is made of these.
        """
        return _cannot_fail(self._expression)

    def plain(self) -> Column:
        """Its value, in a DataFrame that has at least the visible columns."""
        return self._as_column(self._expression)

    def guarded(self, condition: Column | None) -> Column:
        """A struct with its value as FIELD; NULL where evaluating it failed, or the condition is not true.

        Args:
            condition: of the DataFrame that the result goes into, which has at least the visible columns; None: always.
        """
        struct = Resolved(self._visible, F.struct(self.plain().alias(FIELD)))
        tried = self._as_column(self._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(struct._expression))
        # Without a condition, one that is always true and that the optimizer cannot know to be.
        return F.when(F.spark_partition_id() >= 0 if condition is None else condition, tried)

    def _as_column(self, expression: JavaObject) -> Column:
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    @property
    def _jvm(self) -> JVMView:
        jvm = self._visible.sparkSession._jvm  # noqa: SLF001 - Catalyst's expressions have no Python side
        assert jvm is not None, "a session has a JVM"
        return jvm

    @property
    def _expression(self) -> JavaObject:
        return self._plan.projectList().head().child()


def _cannot_fail(expression: JavaObject) -> bool:
    kind = expression.getClass().getSimpleName()
    if kind not in _CANNOT_FAIL and not (kind == "Cast" and expression.dataType().typeName() == "string"):
        return False
    children = expression.children()
    return all(_cannot_fail(children.apply(number)) for number in range(children.size()))
