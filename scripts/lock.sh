#!/usr/bin/env bash
# Writes requirements.lock from pyproject.toml: one set of versions, with hashes, for Python 3.11 to 3.13 on Linux and
# macOS. uv chooses the versions, because pip can choose versions only for the platform on which pip runs. If uv is not
# installed, this script installs uv into a temporary environment. With `--upgrade` (make lock UPGRADE=1), uv chooses
# the newest versions. Otherwise uv keeps the locked versions that still satisfy pyproject.toml.
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    "${PYTHON:-python3}" -m venv "$scratch/venv"
    "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
    uv=$scratch/venv/bin/uv
fi

# The lock has one version of each package, for all these Pythons. Newer versions of these two packages do not support
# 3.11.
printf '%s\n' 'numpy<2.5' 'deprecated<2' >"$scratch/constraints"

cp requirements.lock "$scratch/requirements.lock" 2>/dev/null || true
"$uv" pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --constraints "$scratch/constraints" \
    --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet "$@" --output-file "$scratch/requirements.lock" \
    >/dev/null
{
    echo "# Every package of Lakelog and its tests, for Python 3.11 to 3.13 on Linux and macOS."
    echo "# Written by \`make lock\` from pyproject.toml (\`make lock UPGRADE=1\` takes newer versions): do not edit."
    cat "$scratch/requirements.lock"
} >"$scratch/with-header"
mv "$scratch/with-header" requirements.lock
