"""What an error of Spark's may say in one of ours.

Ours end up in logs that more people read than the data, and some of Spark's quote a row: "the value 'abc' cannot be cast".
So of an error in a task only what cannot be a row's is passed on: the name that Spark gives such errors (in brackets, in
capitals), the file that could not be read, and the text of an error of our own, of which no text has contents.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""As what Spark's errors reach Python: some stay as they are in Java, those from a callback above all."""

_OURS = re.compile(r"^(?:storage_engine|schemas|pipeline)(?:\.\w+)*\.\w+Error: (.+?)\.?$", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_FILE = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")


def error_of_ours(error: BaseException) -> str | None:
    """What an error of our own says that Spark has wrapped in one of its own; it has crossed processes as text."""
    found = _OURS.findall(str(error))
    return found[-1] if found else None


def without_contents(error: BaseException) -> str:
    """What an error of Spark's is about, without a word from a row."""
    ours = error_of_ours(error)
    if ours is not None:
        return ours
    text = str(error)
    condition, file = _CONDITION.search(text), _FILE.search(text)
    kind = condition[1] if condition else type(error).__name__
    return f"{kind} in {file[1]}" if file else kind
