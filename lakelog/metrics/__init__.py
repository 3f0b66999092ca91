"""Shows a root to monitoring: `lakelog metrics` for Prometheus, and `lakelog check` for monitoring plugins.

    topic_watch.py, root_watch.py   follow the topics of a root, and keep what they have read
    consumer_lag.py                 how far the consumers of a topic are behind
    consumer_status.py              whether a consumer reads, by Burrow's rules (pure)
    change_kinds.py                 the times of a topic's last changes
    table_counts.py                 dead letters and stale rows, from Delta tables
    figures.py                      the values that all of these make
    families.py                     values -> Prometheus's metrics (pure)
    endpoint.py                     metrics -> HTTP, or a text file
    scrape_server.py                answers scrapes over HTTP, also for jobs
    rules.py, judging.py            values and limits -> findings (pure)
    plugin_output.py                findings -> the text of a monitoring plugin (pure)

Nothing here changes a root, and nothing needs Spark.
"""
