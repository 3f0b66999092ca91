"""Gives the metrics of one run of a job to Prometheus and to Spark while the job runs. docs/MONITORING.md lists them.

job_metrics.py    a display of progress that collects the metrics
job_figures.py    makes Prometheus's metrics from what the meters of the work know
outputs.py        a file, an address for scrapes, and Spark's metrics system
"""
