"""Record batches: bytes from Arrow columns, and columns from bytes."""
