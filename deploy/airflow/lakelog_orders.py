"""An hour of a topic in Airflow: maintenance, then an export, then a sensor that waits until the table is fresh.

    maintenance  ->  export  ->  table_is_fresh  ->  tasks of your own that read the table

Copy this file into Airflow's folder of DAGs, and change the constants. The workers need the checkout, Java and the root.

- The last line of standard output, a job's JSON, becomes the XCom of its task.
- Retries are safe: a job continues after its last commit.
- The export also runs if the maintenance has failed, because it does not need the maintenance.
- The sensor looks at the age of the oldest record that the export has not read. If the exports run as a service with a
  trigger, remove the task `export`, and keep the sensor.
"""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

HOME = "/opt/lakelog"
ROOT = "/mnt/shared/lakelog"
JOB = f"cd {HOME} && ./spark-submit.sh {{}} --conf /etc/lakelog/orders.yaml --json"
LAG = [f"{HOME}/.venv/bin/lakelog", "groups", "describe", "--group", "export tables/orders", "--json", "--root", ROOT]
OLDEST_SECONDS = 900
"""The table is fresh if no record that is older has yet to be exported."""


def table_is_fresh() -> bool:
    """Whether the export has read all records that are old enough. An error of the command fails the sensor."""
    done = subprocess.run(LAG, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    partitions = [json.loads(line) for line in done.stdout.splitlines()]
    # The age is null if the oldest unread record has no timestamp.
    return all(each["records"] == 0 or (each["seconds"] or 0) <= OLDEST_SECONDS for each in partitions)


with DAG(
    "lakelog_orders",
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001  (Airflow uses its own time zone)
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
) as dag:
    maintenance = BashOperator(task_id="maintenance", bash_command=JOB.format("maintenance"))
    export = BashOperator(task_id="export", bash_command=JOB.format("export"), trigger_rule="all_done")
    fresh = PythonSensor(
        task_id="table_is_fresh",
        python_callable=table_is_fresh,
        mode="reschedule",
        poke_interval=30,
        timeout=1800,
    )
    maintenance >> export >> fresh
