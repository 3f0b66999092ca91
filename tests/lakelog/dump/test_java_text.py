"""Bytes become the same text as with new String(bytes, UTF_8) in Java, even if the bytes are not valid UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakelog.dump.java_text import java_texts


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"\xff", "\ufffd"),
        (b"a\xe2\x82", "a\ufffd"),
        (b"\xe2\x28\xa1", "\ufffd(\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\xed\xb0\x80z", "\ufffd\ufffdz"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"", ""),
        (None, None),
    ],
)
def test_bytes_become_the_text_that_java_makes_of_them(data, text):
    assert java_texts(pa.array([data], pa.binary())) == [text]
    assert java_texts(pa.array([data, b"\xff"], pa.binary())) == [text, "\ufffd"]
