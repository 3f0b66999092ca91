"""Prints the spark-submit options that send the archive to a job's executors (`./spark-submit.sh --ship`).

    python -m scripts.ship_options ARCHIVE [spark-submit options...]

Each word is quoted for a shell. An option such as --jars takes a list. If the user also gives such an option, this
program joins the user's list and Lakelog's list, because spark-submit uses only the last list.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

from pipeline.spark.spark_python import NAME
from scripts.add_jars import ADDED

FOLDER = "lakelog"
"""The name under which Spark unpacks the archive, in the working folder of each executor."""
SEARCH_PATH = f"./{FOLDER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of the executors. Spark starts Python by the same name in the driver and in the executors. This name contains no
folder, so PATH decides which program is started. In the driver, it is the program in .venv. In an executor, it is the
program in the archive."""
SETTINGS = {
    "spark.pyspark.python": NAME,
    "spark.executorEnv.PATH": SEARCH_PATH,
    "spark.yarn.appMasterEnv.PATH": SEARCH_PATH,  # for the driver in YARN's cluster mode
}
LISTS = {"--archives": "spark.archives", "--jars": "spark.jars"}


def with_archive(archive: str, jars: Sequence[str], given: Sequence[str]) -> list[str]:
    """The user's options, and the options that send the archive and the jars. No setting of the user is replaced."""
    lists: dict[str, list[str]] = {"--archives": [f"{archive}#{FOLDER}"], "--jars": list(jars)}
    rest: list[str] = []
    settings: set[str] = set()
    words = list(given)
    while words:
        option, equals, value = words[0].partition("=")
        if option not in ("--conf", "-c", *LISTS):
            rest.append(words.pop(0))
            continue
        taken = 1 if equals else 2
        value = value if equals else "".join(words[1:2])
        key, _, setting = value.partition("=")
        name = option if option in LISTS else next((each for each, same in LISTS.items() if same == key), None)
        if name is None:
            settings.add(key)
            rest += words[:taken]
        else:
            lists[name].append(value if option in LISTS else setting)
        del words[:taken]
    ours = [word for key, value in SETTINGS.items() if key not in settings for word in ("--conf", f"{key}={value}")]
    return [*ours, *(word for name, each in lists.items() if each for word in (name, ",".join(each))), *rest]


def main() -> None:
    archive, *given = sys.argv[1:]
    jars = Path(pyspark.__file__).parent / "jars"
    print(shlex.join(with_archive(archive, sorted(str(jar) for form in ADDED for jar in jars.glob(form)), given)))


if __name__ == "__main__":
    main()
