"""`python -m storage_engine.cli`, for an installation whose scripts are not on the PATH."""

from storage_engine.cli import main

main()
