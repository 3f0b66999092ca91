"""Entry points: one Spark job per module, run by `./spark-submit.sh NAME`."""
