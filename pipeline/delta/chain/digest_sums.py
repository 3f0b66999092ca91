"""Sums the digests of rows, by partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.row_digest import DIGEST_BYTES, digest_limbs, whole_array
from pipeline.delta.chain.stamp_chain import NO_ROWS, RowSum

NO_PARTITION = -1
"""Counts for the rows without a partition, which no export writes."""


def sums_by_partition(partitions: pa.Array | pa.ChunkedArray, digests: pa.Array | pa.ChunkedArray) -> dict[int, RowSum]:
    """By partition, the number of the rows and the sum of their digests. A row without a digest of 16 bytes counts as a
    row, but not in the sum."""
    partitions, digests = whole_array(partitions), whole_array(digests)
    numbers = np.array(partitions.fill_null(NO_PARTITION).to_numpy(zero_copy_only=False), np.int64)
    owners = numbers
    is_whole = pc.fill_null(pc.equal(pc.binary_length(digests), DIGEST_BYTES), False)
    if not pc.all(is_whole).as_py():
        digests = digests.filter(is_whole)
        owners = numbers[np.array(is_whole.to_numpy(zero_copy_only=False), np.bool_)]
    limbs = digest_limbs(digests)
    is_one = len(numbers) > 0 and bool((numbers == numbers[0]).all())  # as in most batches of a topic
    found = {}
    for partition in numbers[:1] if is_one else np.unique(numbers):
        totals = (limbs if is_one else limbs[owners == partition]).sum(axis=0, dtype=np.uint64)
        digest = sum(int(total) << (32 * number) for number, total in enumerate(totals))
        found[int(partition)] = NO_ROWS + RowSum(int((numbers == partition).sum()), digest)
    return found
