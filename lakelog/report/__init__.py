"""Makes the report: the current state of a root of topics, as one HTML page that needs no network and no script.

    topic_changes.py       a topic's changes, read from the versions of its state
    throughput.py          those changes over time, in intervals (pure)
    dead_letter_counts.py  counts dead letters by reason, in Delta tables; exported_tables.py counts stale rows there
    facts.py               the whole content of the page, as values: state, retention, compaction, damage, findings
    scales.py              converts offsets, bytes and times to positions in a picture; chooses the marks on its axes (pure)
    markup.py              HTML and SVG elements, escaped
    drawing.py             draws values as SVG (pure)
    page.py                the whole page (pure); its style is page.css
    overview.py            the page's part about the root: figures, warnings, topics
    topic_section.py       the page's part about a topic: partitions, throughput, changes, settings
    next_steps.py          what maintenance would do to a partition now, in words
    attention.py           warnings and dead letters, of the root or of a topic
    layout.py              tables, figures and times

facts.py decides the contents of the page. The modules that follow facts.py in this list only draw the page. The report
never changes a root.
"""
