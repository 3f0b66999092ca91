"""Decodes values in Protobuf's binary format, with the package protobuf."""
