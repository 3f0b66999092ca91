"""The commands that inspect files: verify, doctor, dump, report."""
