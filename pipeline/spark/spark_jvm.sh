#!/usr/bin/env bash
# Starts Spark's JVM. pipeline/spark/session.py lets PySpark run this program instead of Spark's bin/spark-submit.
#
# It runs Spark's bin/spark-class, as bin/spark-submit does, with three differences:
#
# - Spark 4.2 loads the Java module jdk.incubator.vector, and Java prints a warning about it at every start. Only the linear
#   algebra of MLlib uses the module, and can work without it. So this program removes the option from the command. An
#   option that the user adds in spark.driver.extraJavaOptions is not removed.
# - The JVM ignores SIGTERM, which `timeout`, systemd and cron may send to all processes of a job. The job's Python handles
#   the signal and then stops Spark. The JVM ends when its Python ends. PySpark protects the JVM from Ctrl-C in the same
#   way. Child processes of the JVM inherit the ignored signal. Spark's Python daemon and its workers handle SIGTERM again
#   as soon as they begin to work. Executors of a local cluster and Python workers without a daemon do not handle
#   SIGTERM, so Spark ends them with SIGKILL.
# - The JVM maps the archive of Java classes that set-up has written (scripts/archive_classes.py), so Spark starts some
#   seconds sooner. Java accepts the archive only if the class path begins with the same jars, and a directory cannot be
#   in an archive. So this program moves Spark's configuration directory from the beginning of the class path to its end.
#   Java ignores an archive that does not fit.
set -euo pipefail

archive=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)/.venv/spark-classes.jsa

# bin/spark-class ends with `exec COMMAND`, which calls this function.
exec() {
    local argument previous="" left_out="" writes="" command=() conf=${SPARK_CONF_DIR:-$SPARK_HOME/conf}
    [[ " $* " != *" -XX:ArchiveClassesAtExit="* ]] || writes=yes
    for argument in "$@"; do
        if [ "$previous" = -cp ] && [[ $argument == "${conf%/}/:"* ]]; then
            argument=${argument#"${conf%/}/:"}
            [ -n "$writes" ] || argument+=:${conf%/}/
        fi
        if [ -z "$left_out" ] && [ "$argument" = --add-modules=jdk.incubator.vector ]; then
            left_out=yes
        else
            command+=("$argument")
        fi
        previous=$argument
    done
    if [ -r "$archive" ] && [ -z "$writes" ]; then
        command=("${command[0]}" "-XX:SharedArchiveFile=$archive" "${command[@]:1}")
    fi
    builtin exec "${command[@]}"
}

trap '' TERM
export PYTHONHASHSEED=0 # as bin/spark-submit does
set +euo pipefail       # bin/spark-class does not work with these options
. "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.SparkSubmit "$@"
