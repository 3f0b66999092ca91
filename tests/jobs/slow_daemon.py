"""Spark's Python daemon on a machine that is busy with other things: so late that a job with nothing to do has ended."""

from __future__ import annotations

import runpy
import time

SECONDS = 5

if __name__ == "__main__":
    time.sleep(SECONDS)
    runpy.run_module("pipeline.python_daemon", run_name="__main__", alter_sys=True)
