#!/usr/bin/env bash
# Runs the job jobs/NAME.py in the environment of .venv, which is created if it is missing. The Spark settings are those of
# conf/spark-defaults.conf. Arguments after `--` are spark-submit options, which override these settings.
#
# This script becomes the Python process of the job, and Python starts the JVM as its child with those options. So the exit
# status is that of the job, Ctrl-C and SIGTERM reach the job, and the JVM ends when its Python ends. (With
# bin/spark-submit, Python is the child of the JVM: SIGTERM ends the JVM, and Python waits for it.) Only
# --deploy-mode cluster uses bin/spark-submit, because the driver then runs on another host.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

# Prints each job with the first line of its docstring. Files that begin with _ are not jobs.
list_jobs() {
    local file
    for file in "$here"/jobs/[!_]*.py; do
        [ -e "$file" ] || continue
        printf '  %-14s %s\n' "$(basename "$file" .py)" "$(sed -n '/"""/{s/^[^"]*"""//;s/""".*//;p;q;}' "$file")"
    done
}

usage() {
    echo "Usage: ./spark-submit.sh JOB [job arguments...] [-- spark-submit options...]"
    echo
    echo "Jobs (./spark-submit.sh JOB --help describes each):"
    list_jobs
    echo
    echo "For example:"
    echo "  ./spark-submit.sh ingest --conf my.yaml -- --master 'local[2]' --conf spark.driver.memory=4g"
}

# $1 as one word for Python's shlex, which reads PYSPARK_SUBMIT_ARGS.
quoted() {
    printf "'%s' " "${1//\'/\'\"\'\"\'}"
}

case ${1:-} in
    -h | --help) usage && exit 0 ;;
    "") usage >&2 && exit 2 ;;
esac

job=$1
shift
if [[ ! $job =~ ^[A-Za-z][A-Za-z0-9_]*$ || ! -f $here/jobs/$job.py ]]; then
    { echo "spark-submit.sh: there is no job $job. The jobs are:" && list_jobs; } >&2
    exit 2
fi

arguments=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
done
[ $# -eq 0 ] || shift

deploy_mode=client submit_args="" previous="" loads_defaults=""
for option in "$@"; do
    submit_args+=$(quoted "$option")" "
    case $previous=$option in
        --deploy-mode=cluster | *=--deploy-mode=cluster | *spark.submit.deployMode=cluster) deploy_mode=cluster ;;
        *=--properties-file | *=--properties-file=*) loads_defaults="--load-spark-defaults" ;;
    esac
    previous=$option
done

. "$here/scripts/setup.sh"

# A --properties-file of the user overrides conf/spark-defaults.conf key by key, and does not replace the file.
if [ $deploy_mode = cluster ]; then
    exec "$here/.venv/bin/spark-submit" $loads_defaults "$@" "$here/jobs/$job.py" ${arguments[@]+"${arguments[@]}"}
fi
export PYSPARK_SUBMIT_ARGS="$loads_defaults $submit_args pyspark-shell"
# -P keeps jobs/ out of the import path: `import retention` must not find jobs/retention.py.
exec "$here/.venv/bin/python" -P "$here/jobs/$job.py" ${arguments[@]+"${arguments[@]}"}
