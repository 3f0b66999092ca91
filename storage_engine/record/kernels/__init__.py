"""Contains the functions that numba compiles: checksums, varints, encoding and decoding."""
