"""Prints the files of a Kafka log for people, exactly as Kafka's own tool does (DumpLogSegments of 4.3.1).

    Dumping orders-0/00000000000000000000.log
    Log starting offset: 0
    baseOffset: 0 lastOffset: 1 count: 2 ... position: 0 CreateTime: 1700000000042 size: 94 magic: 2 ...
    | offset: 0 CreateTime: 1700000000042 keySize: 2 valueSize: -1 sequence: -1 headerKeys: [] key: k1
    | offset: 1 CreateTime: 1700000000041 keySize: -1 valueSize: 5 sequence: -1 headerKeys: [] payload: hello
    Found 17 invalid bytes at the end of 00000000000000000000.log

    Non-consecutive offsets in /logs/orders-0/00000000000000000000.log
      1 is followed by 7

Each batch gets a line. With `records` each record gets a line, too; with `contents` this line has the key and the
value. A .index or .timeindex is compared with the .log beside it. Contradictions between files are printed after the
last file (Mismatches). A contradiction is not always damage: compaction, for example, leaves gaps. In the output for
programs, each line is a JSON object, with Kafka's names in snake case, and with bytes in base64.

The tool must be able to print damaged files. A batch with a wrong CRC is printed, too (isvalid: false). The records of
a batch are printed up to the first record that cannot be decoded. Then the dump of the file ends with a
CorruptionError; Kafka's tool ends with a stack trace. Kafka's tool also stops at a segment above 2 GiB, at a .timeindex
without its .index, and at an index entry for a batch above 5 MiB.

A .log is read in pieces of a few MiB, whatever its size. A .index is read into memory as a whole.

    any_file.py         the kind of a file, by its name
    log_file.py         a .log
    index_files.py      .index and .timeindex, compared with their .log
    small_files.py      .txnindex, .snapshot, checkpoints

    entries.py          the entries of a .log: batches, or messages of magic 0 and 1
    decoded_batches.py  the records of batches, also of damaged batches
    messages.py         the messages in an entry of magic 0 or 1
    lookup.py           finds the entry for an offset or a position in the same way as Kafka

    batch_lines.py      the lines of batches
    record_lines.py     the lines of their records
    message_lines.py    the lines of messages of magic 0 and 1
    decoded_contents.py keys and values as Kafka's decoders print them
    lines.py            the common parts of all lines: text or JSON
    fields.py           the names of numeric header fields
    java_text.py        values as Java prints them

    dumped_file.py      a file and its names
    mismatches.py       contradictions between files
"""

from lakelog.dump.any_file import dump_file
from lakelog.dump.lines import DumpOptions, TopicDecoder, ValueDecoder
from lakelog.dump.mismatches import Mismatches
from lakelog.dump.reading.dumped_file import DumpedFile

__all__ = ["DumpOptions", "DumpedFile", "Mismatches", "TopicDecoder", "ValueDecoder", "dump_file"]
