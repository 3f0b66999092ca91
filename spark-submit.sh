#!/usr/bin/env bash
# Runs the job jobs/NAME.py in the environment of .venv. If .venv is missing, this script first creates .venv. The Spark
# settings are those of conf/spark-defaults.conf. Arguments after `--` are spark-submit options, which override these
# settings. If you give a path that ends with .py instead of a job's name, the script runs this program in the same way.
#
# With --ship, Spark sends the archive of `make dist` to the executors, and the executors run the Python of this
# archive. The archive is built if it is missing or out of date. --ship=ARCHIVE sends the archive ARCHIVE instead.
# docs/CLUSTER.md describes --ship.
#
# The process of this script becomes the Python process of the job. Python then starts the JVM as a child process, with
# the spark-submit options. So the exit status is that of the job, Ctrl-C and SIGTERM reach the job, and the JVM ends
# when the Python process ends. With bin/spark-submit, Python would be the child of the JVM: SIGTERM would end the JVM,
# and Python would wait for the JVM. Only --deploy-mode cluster uses bin/spark-submit, because the driver then runs on
# another host.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)

# Prints each job with the first line of the job's docstring. Files whose names begin with _ are not jobs.
list_jobs() {
    local file
    for file in "$here"/jobs/[!_]*.py; do
        [ -e "$file" ] || continue
        printf '  %-14s %s\n' "$(basename "$file" .py)" "$(sed -n '/"""/{s/^[^"]*"""//;s/""".*//;p;q;}' "$file")"
    done
}

usage() {
    echo "Usage: ./spark-submit.sh [--ship[=ARCHIVE]] JOB [job arguments...] [-- spark-submit options...]"
    echo
    echo "Jobs (./spark-submit.sh JOB --help describes the job JOB):"
    list_jobs
    echo
    echo "For example:"
    echo "  ./spark-submit.sh ingest --conf my.yaml -- --master 'local[2]' --conf spark.driver.memory=4g"
    echo "  ./spark-submit.sh --ship ingest --conf my.yaml -- --master spark://host:7077"
}

# Prints $1 with quotes, so that Python's shlex reads $1 as one word. PySpark reads PYSPARK_SUBMIT_ARGS with shlex.
quoted() {
    printf "'%s' " "${1//\'/\'\"\'\"\'}"
}

ship=""
case ${1:-} in
    --ship) ship=current && shift ;;
    --ship=?*) ship=${1#--ship=} && shift ;;
esac
case ${1:-} in
    -h | --help) usage && exit 0 ;;
    "") usage >&2 && exit 2 ;;
esac

job=$1
shift
# -P keeps jobs/ out of the import path: `import retention` must not find jobs/retention.py.
program=$here/jobs/$job.py safe_path=-P
if [[ $job == *.py && -f $job ]]; then
    program=$job safe_path=""
elif [[ ! $job =~ ^[A-Za-z][A-Za-z0-9_]*$ || ! -f $program ]]; then
    { echo "spark-submit.sh: there is no job $job. The jobs are:" && list_jobs; } >&2
    exit 2
fi

arguments=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
done
[ $# -eq 0 ] || shift

. "$here/scripts/setup.sh"

if [ -n "$ship" ]; then
    if [ "$ship" = current ]; then
        ship=$("$here/.venv/bin/python" -P -m scripts.executor_archive)
    fi
    shipped=$("$here/.venv/bin/python" -P -m scripts.ship_options "$ship" "$@")
    eval "set -- $shipped"
    export PYSPARK_PYTHON=lakelog-python PATH=$here/.venv/bin:$PATH
fi

master=$(awk '$1 == "spark.master" { master = $2 } END { print master }' "$SPARK_CONF_DIR/spark-defaults.conf" 2>/dev/null || true)
deploy_mode=client submit_args="" previous="" loads_defaults=""
for option in "$@"; do
    submit_args+=$(quoted "$option")" "
    case $previous=$option in
        --deploy-mode=cluster | *=--deploy-mode=cluster | *spark.submit.deployMode=cluster) deploy_mode=cluster ;;
        *=--properties-file | *=--properties-file=*) loads_defaults="--load-spark-defaults" ;;
    esac
    case $option in
        --master=* | spark.master=* | --conf=spark.master=*) master=${option##*master=} ;;
        *) [ "$previous" != --master ] || master=$option ;;
    esac
    previous=$option
done

# If the user gives --properties-file, the keys in that file override the same keys in conf/spark-defaults.conf. The
# other keys of conf/spark-defaults.conf stay in effect.
if [ $deploy_mode = cluster ]; then
    if [[ $master == spark://* ]]; then
        echo "spark-submit.sh: --deploy-mode cluster does not work with $master: Spark's standalone master runs only Java" \
            "programs as drivers, and the jobs are Python. Run the job in client mode, on a host that reaches the workers." >&2
        exit 2
    fi
    [ -z "$ship" ] || export PYSPARK_DRIVER_PYTHON=lakelog-python
    exec "$here/.venv/bin/spark-submit" $loads_defaults "$@" "$program" ${arguments[@]+"${arguments[@]}"}
fi
export PYSPARK_SUBMIT_ARGS="$loads_defaults $submit_args pyspark-shell"
exec "$here/.venv/bin/python" $safe_path "$program" ${arguments[@]+"${arguments[@]}"}
