"""Makes an exported table again from the whole log, as the table's next version."""
