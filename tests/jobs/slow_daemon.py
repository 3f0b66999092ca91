"""Delays the start of Spark's Python daemon, as on a busy machine, until a job without work has ended."""

from __future__ import annotations

import runpy
import time

SECONDS = 5

if __name__ == "__main__":
    time.sleep(SECONDS)
    runpy.run_module("pipeline.python_daemon", run_name="__main__", alter_sys=True)
