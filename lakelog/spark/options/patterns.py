"""Translates a regular expression of Java for Python, as far as its syntax can matter for the name of a topic.

Syntax that has another meaning in Python is translated or refused. Syntax that Python does not have is refused, too.
docs/SOURCES.md lists what is refused.
"""

from __future__ import annotations

import re

_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "Punct": "._-",
    "L": "a-zA-Z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9", "P": "._-", "IsAlphabetic": "a-zA-Z",
    "IsDigit": "0-9", "IsLatin": "a-zA-Z", "IsLowercase": "a-z", "IsUppercase": "A-Z", "javaLowerCase": "a-z",
    "javaUpperCase": "A-Z", "javaLetter": "a-zA-Z", "javaDigit": "0-9", "javaLetterOrDigit": "a-zA-Z0-9",
}  # fmt: skip
"""Java's named character classes, limited to the characters that a topic's name may contain."""

_TOKEN = re.compile(
    r"""
      \\Q (?P<quoted> .*?) (?: \\E | \Z)
    | \\ (?P<sign> [pP]) (?: \{ (?P<name> \w+) \} | (?P<letter> \w))
    | \\k < (?P<reference> \w+) >
    | \\x \{ (?P<code> [0-9a-fA-F]{1,4}) \}
    | (?P<group> \( \? < (?= [a-zA-Z]))
    | (?P<unknown> \( \? [P#(])
    | (?P<times> \{ (?! [0-9]+ (?: , [0-9]*)? \}))
    | (?P<opening> \[ \^?) (?P<bracket> \]?)
    | (?P<closing> \])
    | (?P<twice> && | --)
    | (?P<plain> \\ . | .)
    """,
    re.VERBOSE | re.DOTALL,
)


def in_python(pattern: str) -> str:
    """
    Raises:
        re.error: the pattern contains something that Java refuses, or that is not translated.
    """
    parts, in_class = [], False
    for token in _TOKEN.finditer(pattern):
        parts.append(_in_class(token) if in_class else _outside(token))
        in_class = token["closing"] is None if in_class else token["opening"] is not None
    return "".join(parts)


def _outside(token: re.Match[str]) -> str:
    """A part of a pattern outside of character classes."""
    if token["sign"]:
        return f"[{'^' if token['sign'] == 'P' else ''}{_letters(token)}]"
    if token["reference"]:
        return f"(?P={token['reference']})"
    if token["group"]:
        return "(?P<"
    if token["unknown"]:
        raise re.error(f"`{token[0]}` begins no group")
    if token["times"]:
        raise re.error("`{` begins no repetition, such as `{2}` or `{2,5}`")
    if token["opening"]:
        return token["opening"] + (r"\]" if token["bracket"] else "")
    return r"\Z" if token[0] == r"\z" else _common(token)


def _in_class(token: re.Match[str]) -> str:
    """A part of a pattern within a character class."""
    if token["sign"] == "P":
        raise re.error(r"`\P` within a character class is not supported; use `[^\p{...}]`")
    if token["sign"]:
        return _letters(token)
    if token["opening"]:
        raise re.error("a character class within a character class is not supported")
    if token["twice"] == "&&":
        raise re.error("an intersection of character classes is not supported")
    if token["twice"]:
        raise re.error(r"`--` within a character class is not supported; write a hyphen as `\-`")
    return re.escape(token[0]) if token[0] in "|~{" else _common(token)


def _common(token: re.Match[str]) -> str:
    if token["quoted"] is not None:
        return re.escape(token["quoted"])
    return re.escape(chr(int(token["code"], 16))) if token["code"] else token[0]


def _letters(token: re.Match[str]) -> str:
    name = token["name"] or token["letter"]
    if name not in _CLASSES:
        raise re.error(f"the character class `{name}` is not supported")
    return _CLASSES[name]
