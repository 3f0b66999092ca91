"""Jobs that export into a database are killed at random, and started again.

`KILLS=50` kills 50 jobs for each database, which is a long trial. In a long trial, every tenth job exports with Spark,
and the test kills the job's process or its JVM. Some of the other jobs are paused while another job exports the same
records, and then continue.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.settings.jdbc_settings import DatabaseKind
from tests.pipeline.jdbc.sales import Sales
from tests.servers.sql.databases import Databases

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(1 << 32))))
IS_LONG = KILLS > 10
LONGEST_SECONDS = 300
KINDS = tuple(DatabaseKind) if IS_LONG else (DatabaseKind.POSTGRESQL, DatabaseKind.MARIADB)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_killed_jobs_lose_and_double_nothing(databases: Databases, tmp_path: Path, kind: DatabaseKind) -> None:
    print(f"SEED={SEED}")
    chance = random.Random(SEED)
    target = replace(databases.administrator(kind), table=f"sales_{uuid4().hex[:12]}")
    sales = Sales(tmp_path, target)
    sales.sell(300, chance)
    took = {False: seconds_of_a_run(sales)}
    killed = zombies = losers = 0
    while killed < KILLS:
        with_spark = IS_LONG and killed % 10 == 9
        options = ("--set", "export.spark.records=0") if with_spark else ()
        sales.sell(chance.choice([1, 50, 3000]), chance)
        if with_spark not in took:
            took[with_spark] = seconds_of_a_run(sales, *options)
            sales.sell(500, chance)
        job = sales.job(*options)
        time.sleep(chance.uniform(0.3, 1.1) * took[with_spark])
        if IS_LONG and job.poll() is None and not with_spark and chance.random() < 0.3:
            job.send_signal(signal.SIGSTOP)
            beside = sales.job()
            said, _ = beside.communicate(timeout=LONGEST_SECONDS)
            # A job that is stopped in its last transaction holds the locks of the table's position.
            assert beside.returncode == 0 or "another session holds a lock for more than 60 seconds" in said, said
            sales.sell(20, chance)
            job.send_signal(signal.SIGCONT)
            said, _ = job.communicate(timeout=LONGEST_SECONDS)
            assert job.returncode in (0, 1), said
            assert job.returncode == 0 or "another run" in said, said
            zombies += 1
            losers += job.returncode
            seconds_of_a_run(sales)
        else:
            kill(job, chance)
            killed += 1
            seconds_of_a_run(sales)
        assert sales.problems() == []
    print(f"{kind}: {killed} killed, {zombies} stopped and continued ({losers} lost), 0 lost, 0 doubled")


def seconds_of_a_run(sales: Sales, *options: str) -> float:
    """Run the job until its end."""
    started = time.monotonic()
    job = sales.job(*options)
    said, _ = job.communicate(timeout=LONGEST_SECONDS)
    assert job.returncode == 0, said
    return time.monotonic() - started


def kill(job: subprocess.Popen[str], chance: random.Random) -> None:
    """Kill the job's process, or its JVM if it has one."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    jvms = [int(each) for each in children.read_text().split()] if children.exists() else []
    if jvms and chance.random() < 0.5:
        for each in jvms:
            os.kill(each, signal.SIGKILL)
    else:
        job.kill()
    job.communicate(timeout=LONGEST_SECONDS)
