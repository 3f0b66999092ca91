"""The commands that inspect files and roots: verify, doctor, dump, report, metrics, check."""
