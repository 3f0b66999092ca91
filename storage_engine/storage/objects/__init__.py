"""Stores files in object stores: S3, Google Cloud Storage and Azure, by the package obstore."""
