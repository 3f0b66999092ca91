"""The files of a Kafka log as people read them, in the words of Kafka's own tool (DumpLogSegments of 4.3.1).

    Dumping orders-0/00000000000000000000.log
    Log starting offset: 0
    baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 ... position: 0 CreateTime: 1700000000042 size: 94 magic: 2 ...
    | offset: 0 CreateTime: 1700000000042 keySize: 2 valueSize: -1 sequence: -1 headerKeys: [] key: k1
    | offset: 1 CreateTime: 1700000000041 keySize: -1 valueSize: 5 sequence: -1 headerKeys: [] payload: hello
    Found 17 invalid bytes at the end of 00000000000000000000.log

    Non-consecutive offsets in /logs/orders-0/00000000000000000000.log
      1 is followed by 7

A line for each batch; with `records` one for each record, too, with `contents` its key and value in it. A .index or
.timeindex is held against the .log beside it. What does not fit together is told behind the last file (Findings): it
need not be damage, for compaction leaves gaps. Or one JSON object a line, for programs: Kafka's names in snake case,
bytes in base64.

Damage is what such a tool is for. A batch is shown whatever its CRC says (isvalid: false), its records up to the first
that cannot be decoded; then a CorruptionError ends the file. Kafka's tool ends with a stack trace there, and earlier:
it also stops over segments above 2 GiB, a .timeindex without its .index, and batches above 5 MiB that a .index names.

A .log goes through in pieces of a few MiB, whatever its size; a .index is held whole.

    any_file.py         which kind a file is, by its name
    log_file.py         a .log
    index_files.py      .index and .timeindex, held against their .log
    small_files.py      .txnindex, .snapshot, checkpoints

    entries.py          what stands in a .log: batches, or messages of magic 0 and 1
    decoded_batches.py  the records of batches, however damaged
    messages.py         what an entry of magic 0 or 1 holds
    lookup.py           the entry that an offset or a position leads to, found as Kafka finds it

    batch_lines.py      values to lines: of batches,
    record_lines.py     their records,
    message_lines.py    and messages of magic 0 and 1
    lines.py            what all lines have in common: text or JSON
    fields.py           what a header's numbers stand for
    java_text.py        values as Java writes them

    dumped_file.py      a file and what it is called
    findings.py         what does not fit together
"""

from storage_engine.dump.any_file import dump_file
from storage_engine.dump.dumped_file import DumpedFile
from storage_engine.dump.findings import Findings
from storage_engine.dump.lines import Wanted

__all__ = ["DumpedFile", "Findings", "Wanted", "dump_file"]
