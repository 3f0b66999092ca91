"""Keeps Delta tables of exports and of dead letters small: joins small files, and deletes files and log entries that
are not needed any more."""
