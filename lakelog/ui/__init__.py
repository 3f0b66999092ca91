"""Serves pages about a root to a browser, for `lakelog ui`. The server makes each page; no page needs a script.

    serving.py           opens the port, and serves until a signal arrives
    application.py       the routes, and the pages about errors
    site.py              what all pages share: the topics, the options, the plans that were shown
    parameters.py        checks the parameters of an address, and the fields of a form
    rendering.py         makes a page from a template: templates/*.html, static/ui.css, static/refresh.js
    root_look.py         the figures of all topics, from their states and the files of the consumers
    background/          threads that read all topics, and that make a change
    overview_pages.py    the root: topics, what asks for attention, settings
    topic_pages.py       a topic: partitions, settings, history
    group_pages.py       the groups, and their lag over time; lag_picture.py draws the lag
    record_pages.py      the records of a partition
    dead_letter_pages.py dead letters by reason, and how to replay them
    plan_pages.py        what cleaning would do; applies a plan that was shown
    changes.py           the forms that alter settings and delete groups, and the page of a change
    access/              who may see and change what: hosts, tokens, sessions, forms

A page shows what the public functions of the engine return. Without --allow-changes, no page has a form that changes
the root, and the server refuses such a form. Keys, values and headers of records are shown only with --show-values.

The pages escape all text. Some characters are shown as escapes, because a terminal or a browser would interpret them:
for example control characters, and characters that reverse the direction of text (lakelog/terminal/text.py). Several
requests may be served at the same time, each in a thread of its own.
"""
