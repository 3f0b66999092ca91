"""The report: what a root of topics looks like now, as one HTML page that needs no network and no script.

    history.py       a topic's changes, read from the versions of its state
    throughput.py    those changes over time, in intervals (pure)
    dead_letters.py  counts by reason, from the Delta tables
    facts.py         all that the page says, as values: state, retention, compaction, damage, findings
    scales.py        offsets, bytes and times to places in a picture, and the marks on its axes (pure)
    markup.py        HTML and SVG elements, escaped
    drawing.py       values to SVG (pure)
    page.py          values to HTML (pure); page.css is its style

Deciding what is worth saying ends in facts.py; what comes after it only draws. Nothing here changes a root.
"""
