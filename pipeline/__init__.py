"""Joins the storage engine to Spark and Delta: settings, ingests, cleaning jobs, exports and the Spark session."""
