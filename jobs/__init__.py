"""Contains the entry points: each module is one Spark job, which `./spark-submit.sh NAME` runs."""
