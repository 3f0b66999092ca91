#!/usr/bin/env bash
# Runs a container of Lakelog's image. With the argument `executor`, which Spark gives to the pods that it creates, this
# script runs an executor. Otherwise this script runs ./spark-submit.sh with all arguments.
#
# Spark describes an executor in environment variables: SPARK_DRIVER_URL, SPARK_EXECUTOR_ID and so on. For each option
# of the executor's JVM, there is one variable SPARK_JAVA_OPT_<number>.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
if [ "${1:-}" = driver ]; then
    echo "lakelog: this image does not run drivers of --deploy-mode cluster: run ./spark-submit.sh in a pod, in client mode" >&2
    exit 2
fi
if [ "${1:-}" != executor ]; then
    exec ./spark-submit.sh "$@"
fi

jars=$(.venv/bin/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')/jars
options=()
while IFS= read -r name; do
    options+=("${!name}")
done < <(compgen -v | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n)

exec java ${options[@]+"${options[@]}"} "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$PWD/conf}:$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
