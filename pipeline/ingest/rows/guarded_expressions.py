"""Evaluates expressions of the settings. If an expression fails on a row, the row is marked, and the stream continues.

In Spark's ANSI SQL, an overflow, an unreadable date or a cast of 'abc' to a number is an error. The error ends the
stream. After each restart, the stream ends again at the same row. It would be worse to use NULL instead of the error,
because a NULL value is a tombstone. Catalyst, Spark's planner, has the expression TryEval, whose value is NULL if its
child fails. This module makes the child a struct that has the expression as its only field. The struct distinguishes
the two cases: if the expression fails, the struct is NULL; if the value is NULL, only the field is NULL.

The module relies on two properties of Catalyst, and tests check both properties:

- If several expressions share a subexpression, Catalyst evaluates the subexpression once, before these expressions.
  This is outside of TryEval, so an error would end the stream. Catalyst does not do this for an expression in a branch
  of CASE WHEN, because the result of the branch is not always needed. So guarded expressions are in such a branch.
- A resolved expression refers to columns by their ids. So the expression can be evaluated on rows with additional
  columns, and `*` still means only the columns that the settings can see. The text of the expression is not used,
  because Spark would resolve the text against all columns, including the additional columns.
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
"""The name of the struct's only field, which contains the expression's value."""


class Resolved:
    """An expression that Catalyst has resolved against the columns that the expression may use."""

    def __init__(self, visible: DataFrame, column: Column) -> None:
        """
        Args:
            visible: a DataFrame with the columns that the expression may use.

        Raises:
            AnalysisException: the expression uses other columns, or is not valid.
        """
        self._visible = visible
        self._selected = visible.select(column.alias(FIELD))
        self._plan = self._selected._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no Python side

    @cached_property
    def type(self) -> DataType:
        """The type of the expression's value."""
        return self._selected.schema[FIELD].dataType

    def cast(self, to: str) -> Resolved:
        """The expression, cast to another type."""
        return Resolved(self._visible, self.plain().cast(to))

    def is_of_one_row(self) -> bool:
        """Whether the expression gives one value for each row, so it is not an aggregate, window or generator."""
        plan = self._plan
        while plan.nodeName() not in _OF_MANY_ROWS:
            if plan.children().isEmpty():
                return True
            plan = plan.children().head()
        return False

    def refers_to(self, name: str) -> bool:
        """Whether the expression uses a column of this name."""
        columns = self._expression.references().toSeq()
        return any(columns.apply(number).name() == name for number in range(columns.size()))

    def cannot_fail(self) -> bool:
        """Whether the expression is safe on every row, so that it needs no guard.

        The result is True for columns, constants, casts to text, structs as JSON, and combinations of these.
        """
        return _cannot_fail(self._expression)

    def plain(self) -> Column:
        """The value, as a column of a DataFrame that has at least the visible columns."""
        return self._as_column(self._expression)

    def guarded(self, condition: Column | None) -> Column:
        """A struct with the value in FIELD. The struct is NULL if the evaluation fails, or if the condition is not
        true.

        Args:
            condition: a column of the DataFrame in which the result is used; None: always true.
        """
        struct = Resolved(self._visible, F.struct(self.plain().alias(FIELD)))
        tried = self._as_column(self._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(struct._expression))
        # If there is no condition, use one that is always true but that the optimizer cannot remove.
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
