"""Runs exports: reads their requests, exports topics into Delta tables, and reports the results.

export_request.py   reads the request of a run from the settings and the command line
one_export.py       runs one export
several_exports.py  runs several exports in turn, once or again after each interval
export_to_database.py   runs an export into a database
export_report.py    makes the report of one export

pipeline.delta contains what an export does with a Delta table, and pipeline.jdbc what it does with a table of a database.
"""
