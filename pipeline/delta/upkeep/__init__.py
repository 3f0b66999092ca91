"""Keeps Delta tables of exports and of dead letters small: joins small files, and deletes what nobody needs any more."""
