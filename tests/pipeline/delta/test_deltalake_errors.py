"""The errors of deltalake that are no subclass of Exception."""

from __future__ import annotations

import pytest

from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from storage_engine.errors import StorageError, StorageFullError


class PanicException(BaseException):
    """Like the class pyo3_runtime.PanicException, which Python cannot import."""


def test_a_panic_in_deltalake_is_a_typed_error_of_unknown_outcome() -> None:
    with pytest.raises(StorageError) as caught, deltalake_errors("hdfs://host/orders", "Nothing was exported."):
        raise PanicException("Cannot read past end of the file")
    assert str(caught.value) == (
        "hdfs://host/orders: cannot be written: deltalake had an internal error. It is unknown whether the change was"
        " committed. Run the job again."
    )
    with pytest.raises(KeyboardInterrupt), deltalake_errors("orders", "Nothing was exported."):
        raise KeyboardInterrupt


def test_a_full_disk_is_told_although_the_message_has_several_lines() -> None:
    message = (
        "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to copy data to file\n  \x1b[31m↳\x1b[0m No space left on"
        " device (os error 28)\n\nstack backtrace:\n   0: secret\n"
    )
    with pytest.raises(StorageFullError) as caught, deltalake_errors("tables/t", "Nothing was exported."):
        raise OSError(message)
    assert str(caught.value) == (
        "tables/t: cannot be written: Generic LocalFileSystem error: Unable to copy data to file: No space left on device"
        " (os error 28). Nothing was exported. Free space on this file system."
    )
