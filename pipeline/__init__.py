"""Joins the storage engine to Spark: settings, session, source, sink, planning, Delta."""
