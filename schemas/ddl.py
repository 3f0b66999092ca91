"""Makes an event model from columns in Spark's DDL, such as `id STRING NOT NULL, at TIMESTAMP, legs ARRAY<STRUCT<n:
BIGINT>>`.

    columns  = column {"," column}
    column   = name [":"] type ["NOT" "NULL"] ["COMMENT" 'text']
    type     = STRING | BIGINT | LONG | DOUBLE | BOOLEAN | BINARY | TIMESTAMP | DATE
             | DECIMAL ["(" digits ["," places] ")"] | ARRAY "<" type ">" | STRUCT "<" columns ">"

Keywords may be in upper case or lower case. A name may be quoted by backticks. `schemas.model_columns` can map all
these types to columns. Narrower types (INT, FLOAT) are refused, because a number in JSON can be too large for these
types. The model follows the rules of every event model (`schemas.event_model`). The field of a NOT NULL column must be
present and not null. Any other column may be null, and its field need not be present in the JSON. Spark's own parser
cannot be used, because it needs a JVM, and settings are checked before the JVM starts.
"""

from __future__ import annotations

import re
import warnings
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import Field, PydanticUserError, create_model

from schemas.event_model import EventModel

_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
"""The letters that have a meaning after a backslash, as in Spark's DDL. Every other letter stands for itself."""
_SCALARS: Final[dict[str, Any]] = {
    "STRING": str,
    "BIGINT": int,
    "LONG": int,
    "DOUBLE": float,
    "BOOLEAN": bool,
    "BINARY": bytes,
    "TIMESTAMP": datetime,
    "DATE": date,
}
_WIDER: Final = {
    **dict.fromkeys(("INT", "INTEGER", "SMALLINT", "SHORT", "TINYINT", "BYTE"), "BIGINT"),
    **dict.fromkeys(("FLOAT", "REAL"), "DOUBLE"),
    **dict.fromkeys(("VARCHAR", "CHAR"), "STRING"),
    **dict.fromkeys(("TIMESTAMP_NTZ", "TIMESTAMP_LTZ"), "TIMESTAMP"),
}
_NESTED: Final = ("DECIMAL", "ARRAY", "STRUCT")
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<sign>[<>(),:]))")


class DdlError(ValueError):
    """The text is not a list of columns in Spark's DDL, or has a type that event models do not support."""


def is_type(word: str) -> bool:
    """Whether a word is the name of one of Spark's types; upper and lower case are equal."""
    return word.upper() in {*_SCALARS, *_WIDER, *_NESTED}


def event_model(columns: str) -> type[EventModel]:
    """The event model with these columns.

    Raises:
        DdlError: the text cannot be parsed. The error names the place, the word found there and what is allowed.
    """
    parser = _Parser(columns)
    model = parser.columns("Columns")
    if parser.token is not None:
        raise parser.error("a comma, or the end")
    return model


class _Parser:
    """Reads the text from left to right. token: the next token, which is not yet consumed; None at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.token: str | None = None
        self._next()

    def columns(self, name: str) -> type[EventModel]:
        fields: dict[str, Any] = {}
        while True:
            column, field = self._column()
            if column in fields:
                raise DdlError(f"two columns are called {column}")
            if column.startswith("_"):
                raise DdlError(f"the column {column} begins with an underscore, which is not allowed")
            fields[column] = field
            if not self._accept(","):
                break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a column may have the name of a pydantic method, such as `copy`
                return create_model(name, __base__=EventModel, **fields)
        except (NameError, PydanticUserError) as error:
            raise DdlError(str(error).splitlines()[0]) from error

    def _column(self) -> tuple[str, Any]:
        name = self._name()
        self._accept(":")
        annotation = self._type(name)
        required = self._accept("NOT")
        if required:
            self._expect("NULL")
        annotation = annotation if required else annotation | None
        if self._accept("COMMENT"):
            if self.token is None or not self.token.startswith("'"):
                raise self.error("a text in single quotation marks")
            comment = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), self.token[1:-1])
            annotation = Annotated[annotation, Field(description=comment)]
            self._next()
        return name, (annotation, ... if required else None)

    def _name(self) -> str:
        token = self.token
        if token is None or not (token.startswith("`") or token.replace("_", "a").isalnum()):
            raise self.error("the name of a column")
        self._next()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _type(self, column: str) -> Any:
        word = (self.token or "").upper()
        if word in _SCALARS:
            self._next()
            return _SCALARS[word]
        if word not in _NESTED:
            wider = _WIDER.get(word)
            raise self.error(f"the type of column {column}: {wider or ', '.join((*_SCALARS, *_NESTED))}")
        self._next()
        if word == "DECIMAL":
            digits, places = self._digits()
            return Annotated[Decimal, Field(max_digits=digits, decimal_places=places)]
        self._expect("<")
        if word == "ARRAY":
            element = self._type(column)
            inner: Any = list[element | None]  # type: ignore[valid-type]  # a type of this run
        else:
            inner = self.columns(f"Columns_{column}")
        self._expect(">")
        return inner

    def _digits(self) -> tuple[int, int]:
        """The digits and decimal places of a DECIMAL type. As in Spark, DECIMAL means DECIMAL(10, 0)."""
        if not self._accept("("):
            return 10, 0
        digits = self._number()
        places = self._number() if self._accept(",") else 0
        self._expect(")")
        return digits, places

    def _number(self) -> int:
        if self.token is None or not self.token.isdecimal():
            raise self.error("a number")
        number = int(self.token)
        self._next()
        return number

    def _accept(self, token: str) -> bool:
        if self.token is None or self.token.upper() != token:
            return False
        self._next()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self.error(token)

    def _next(self) -> None:
        if not self._text[self._end :].strip():
            self.token = None
            return
        found = _TOKEN.match(self._text, self._end)
        if found is None:
            rest = self._text[self._end :].strip()
            raise DdlError(f"found {rest[:20]!r}, which is not part of DDL")
        self._end = found.end()
        self.token = found.group().strip()

    def error(self, expected: str) -> DdlError:
        """The error with the expected word, the word that was found, and the text before it."""
        before = self._text[: self._end - len(self.token or "")].strip()
        place = f"after {before[-40:]!r}" if before else "at the start"
        found = repr(self.token) if self.token is not None else "the end"
        return DdlError(f"{place}: found {found}, expected {expected}")
