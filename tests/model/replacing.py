"""Replaces an attribute while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(place: object, name: str, value: object) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)
