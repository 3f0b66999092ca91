"""Installs Airflow once for each .venv. Only `make test-airflow` needs Airflow.

Airflow has about two hundred packages, and some of these packages conflict with requirements.lock. So pip installs
Airflow into a separate folder. The process of Airflow has this folder in PYTHONPATH. The version is fixed here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.built_once import built_once

VERSION = "3.3.2"


def airflow() -> Path:
    """The folder with Airflow's packages, which are installed if they are missing."""
    return built_once(f"airflow-{VERSION}", _install)


def _install(folder: Path) -> Path:
    packages = folder / "packages"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", packages,
            f"apache-airflow=={VERSION}", "apache-airflow-providers-standard",
        ],
        stdout=sys.stderr, check=True,
    )  # fmt: skip
    return packages
