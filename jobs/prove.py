"""Prove that each Delta table of an export equals its topic.

    ./spark-submit.sh prove --conf conf/flights.yaml [--table-version N]
    ./spark-submit.sh prove --conf several.yaml [--only NAME]...

The job reads the topic and the table, and decodes each record again. It changes nothing, and needs no Spark. There are
three answers:

    equal                               each row equals its record, and no record that must be a row is missing
    different                           a row was changed, lost, doubled or added, or is older than it must be; the
                                        partition and the offset of each difference are listed, up to a hundred for a table
    equal as far as the log can tell    nothing differs, but the log can no longer prove some of the rows, for example
                                        because retention has deleted their records; the reasons are counted

The exit status is 1 if a table is different, and 0 if not.
"""

from __future__ import annotations

import sys

from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job

if __name__ == "__main__":
    sys.exit(run_job("prove", __doc__, prove_exports, add_proof_options))
