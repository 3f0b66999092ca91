"""Runs the tool as `python -m lakelog.cli`, for an installation whose scripts are not on the PATH."""

from lakelog.cli import main

main()
