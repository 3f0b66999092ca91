"""Exports topics into tables of PostgreSQL and of MariaDB or MySQL: one row per key, each record exactly once.

database.py         what an export needs from a database; the errors
postgresql.py       PostgreSQL
mariadb.py          MariaDB and MySQL
connecting.py       opens the database of the settings
value_text.py       writes columns of Arrow as text that databases read
unfit_values.py     finds values that a database cannot store
staging.py          the staging tables of a run, and how tasks fill them
column_checks.py    checks the columns of a table that a user created or altered
target_tables.py    the exported table and the table of its dead letters: creates and checks them
position_row.py     the row with the position of a table
merge_sql.py        the SQL of the merge
database_export.py  one run of an export

Decision 0054 explains the structure.
"""
