"""What numba compiles: checksums, varints, encoding, decoding."""
