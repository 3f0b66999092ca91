"""The commands about records: append, read, offsets, delete-records, transactions."""
