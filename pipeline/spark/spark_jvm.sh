#!/usr/bin/env bash
# Starts Spark's JVM. pipeline/spark/session.py lets PySpark run this program where it would run Spark's bin/spark-submit.
#
# It does what bin/spark-submit and bin/spark-class do, by running bin/spark-class itself, but for two things:
#
# - Spark 4.2 loads the Java module jdk.incubator.vector, of which Java warns at every start, on standard error, and which
#   only the linear algebra of MLlib uses, where it is there. The option is left out of the command. One that a user adds
#   in spark.driver.extraJavaOptions stays.
# - The JVM takes no SIGTERM, which `timeout`, systemd and cron may send to all processes of a job. It ends when its Python
#   ends, and Python ends Spark in order. PySpark keeps Ctrl-C away from the JVM in the same way. What the JVM starts
#   inherits that. Spark's Python daemon takes SIGTERM again as soon as it serves, and so do its workers. Executors of a
#   local cluster, and Python workers without a daemon, do not: Spark kills them where it would have sent SIGTERM.
set -euo pipefail

# bin/spark-class ends with `exec COMMAND`, which is this function here.
exec() {
    local argument left_out="" command=()
    for argument in "$@"; do
        if [ -z "$left_out" ] && [ "$argument" = --add-modules=jdk.incubator.vector ]; then
            left_out=yes
        else
            command+=("$argument")
        fi
    done
    builtin exec "${command[@]}"
}

trap '' TERM
export PYTHONHASHSEED=0 # as bin/spark-submit does
set +euo pipefail       # bin/spark-class is written without
. "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.SparkSubmit "$@"
