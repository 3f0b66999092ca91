"""Decodes values in Avro's binary format, with the package fastavro."""
