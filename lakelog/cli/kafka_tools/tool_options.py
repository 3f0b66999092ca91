"""The options of each of Kafka's tools (Kafka 4.3.1), as rows for kafka_options.py.

A row has three texts: the option, what to type in lakelog (empty if lakelog refuses the option), and what differs. For a
refused option, the third text is the reason, which the error message contains as its remedy.
"""

from __future__ import annotations

Rows = tuple[tuple[str, str, str], ...]

_NO_BROKER = "Lakelog has no broker: name the root with --root, or a log directory with --kafka-dir."
_NO_BROKER_OF_ROOT = "Lakelog has no broker: name the root with --root."
_NO_CLIENT = "Lakelog connects to no broker. Set the options of the storage in the environment (docs/STORAGE.md)."
_HELP: Rows = (("--help", "--help", ""), ("--version", "", "Type `lakelog --version`."))

DUMP_LOG: Rows = (
    ("--files", "--files", "You can also name files without an option."),
    ("--print-data-log", "--print-data-log", ""),
    ("--deep-iteration", "--deep-iteration", ""),
    ("--skip-record-metadata", "--skip-record-metadata", "Not with --format jsonl."),
    ("--max-bytes", "--max-bytes", ""),
    ("--index-sanity-check", "--index-sanity-check", ""),
    ("--verify-index-only", "--verify-index-only", ""),
    (
        "--max-message-size", "--max-message-size",
        "Default: no limit. Kafka's default is 5 MiB. At an index entry of a larger batch, its tool ends with a stack trace.",
    ),
    ("--offsets-decoder", "--offsets-decoder", "Give only one decoder. If there are several, Kafka's tool uses one of them."),
    ("--transaction-log-decoder", "--transaction-log-decoder", "Give only one decoder."),
    (
        "--cluster-metadata-decoder", "--cluster-metadata-decoder",
        "Give only one decoder. After `Error at`, Lakelog prints the reason in its own words.",
    ),
    (
        "--key-decoder-class", "--key-decoder-class CLASS",
        ("Only StringDecoder, IntegerDecoder and LongDecoder of org.apache.kafka.tools.api. If the key is too short for"
         " the number, Kafka's tool ends, but Lakelog prints the reason. Not with --format jsonl."),
    ),
    ("--value-decoder-class", "--value-decoder-class CLASS", "As --key-decoder-class."),
    (
        "--remote-log-metadata-decoder", "",
        "Lakelog has no tiered storage. --print-data-log --format jsonl prints the bytes of the records.",
    ),
    (
        "--share-group-state-decoder", "",
        "Lakelog has no share groups. --print-data-log --format jsonl prints the bytes of the records.",
    ),
    *_HELP,
)  # fmt: skip

GET_OFFSETS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER),
    (
        "--topic", "--topic",
        ("A regular expression of Python instead of Java. If there is a topic with exactly the name a.b, --topic a.b means"
         " only this topic. In Kafka, a.b also matches a-b, because the dot matches every character."),
    ),
    ("--partitions", "--partitions", ""),
    ("--topic-partitions", "--topic-partitions", "A regular expression of Python instead of Java."),
    (
        "--time", "--time",
        ("Times below -6 are refused. Lakelog has no tiered storage. So -4 (earliest-local) prints the log start offset. -5"
         " (latest-tiered) and -6 (earliest-pending-upload) print nothing, as with a broker without tiered storage."),
    ),
    (
        "--exclude-internal-topics", "--exclude-internal-topics",
        ("Only a log directory (--kafka-dir) has internal topics. One of them is __cluster_metadata, which a broker never"
         " lists."),
    ),
    ("--command-config", "", _NO_CLIENT),
    *_HELP,
)  # fmt: skip

_ONLY_TOPICS = "Lakelog only has settings of topics and of the root. For settings of the root, use `lakelog broker`."
CONFIGS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--bootstrap-controller", "", _NO_BROKER_OF_ROOT),
    ("--command-config", "", _NO_CLIENT),
    ("--alter", "--alter", ""),
    ("--describe", "--describe", "Topics are sorted by name."),
    ("--all", "--all", "Does not print keys that have no effect in Lakelog."),
    ("--add-config", "--add-config", ""),
    ("--add-config-file", "--add-config-file", "Not with --add-config, as in Kafka."),
    ("--delete-config", "--delete-config", "An unknown key is an error."),
    ("--entity-type", "--entity-type topics", "All other types are refused: only topics have settings of this kind."),
    ("--entity-name", "--entity-name", ""),
    ("--topic", "--topic", ""),
    *(
        (f"--{name}", "", _ONLY_TOPICS)
        for name in (
            "broker", "broker-defaults", "broker-logger", "client", "client-defaults", "client-metrics", "entity-default",
            "group", "ip", "ip-defaults", "user", "user-defaults",
        )
    ),
    *_HELP,
)  # fmt: skip

DELETE_RECORDS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--command-config", "", _NO_CLIENT),
    (
        "--offset-json-file", "--offset-json-file",
        "After `error:`, Lakelog prints the reason in its own words. The partitions have the order of the file.",
    ),
    *_HELP,
)  # fmt: skip

LOG_DIRS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER),
    ("--command-config", "", _NO_CLIENT),
    ("--describe", "--describe", ""),
    ("--topic-list", "--topic-list", ""),
    ("--broker-list", "--broker-list", "A root or a log directory has only one broker."),
    *_HELP,
)

_COMMITS = "Lakelog has no producer. To set the number of records in a commit, use --batch-records."
_NO_TRANSACTION = "To append in a transaction, use `lakelog append --transactional`."
PRODUCER_PERF_TEST: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--topic", "--topic", ""),
    ("--num-records", "--num-records", ""),
    ("--record-size", "--record-size", ""),
    ("--payload-file", "--payload-file", ""),
    ("--payload-delimiter", "--payload-delimiter", "A text, not a regular expression."),
    ("--payload-monotonic", "--payload-monotonic", ""),
    ("--throughput", "--throughput", "Default: -1, no limit. Required in Kafka."),
    ("--warmup-records", "--warmup-records", "A warm-up ends at the end of a commit."),
    ("--reporting-interval", "--reporting-interval", ""),
    ("--producer-props", "", _COMMITS),
    ("--command-property", "", _COMMITS),
    ("--producer.config", "", _COMMITS),
    ("--command-config", "", _COMMITS),
    ("--print-metrics", "", "Lakelog has no producer. `lakelog metrics` prints the figures of topics."),
    ("--transactional-id", "", _NO_TRANSACTION),
    ("--transaction-duration-ms", "", _NO_TRANSACTION),
    ("--help", "--help", ""),
)

_NO_CONSUMER = "Lakelog reads files, and has no consumer of a broker."
CONSUMER_PERF_TEST: Rows = (
    ("--bootstrap-server", "", _NO_BROKER),
    ("--topic", "--topic", ""),
    ("--include", "--include", "A regular expression of Python instead of Java."),
    ("--num-records", "--num-records", ""),
    ("--messages", "--messages", "Also deprecated in Kafka."),
    (
        "--from-latest",
        "",
        "The command does not wait for new records. Without this option, the command reads from the start.",
    ),
    ("--timeout", "--timeout", "Only printed in the warning, because the command does not wait for new records."),
    ("--show-detailed-stats", "--show-detailed-stats", ""),
    ("--reporting-interval", "--reporting-interval", ""),
    ("--date-format", "--date-format", "Only the letters y, M, d, H, m, s and S, and text without letters."),
    ("--hide-header", "--hide-header", ""),
    ("--group", "", "The command needs no group. To read as a group, use `lakelog read --group`."),
    ("--fetch-size", "", _NO_CONSUMER),
    ("--socket-buffer-size", "", _NO_CONSUMER),
    ("--command-config", "", _NO_CONSUMER),
    ("--command-property", "", _NO_CONSUMER),
    ("--consumer.config", "", _NO_CONSUMER),
    ("--print-metrics", "", "Lakelog has no consumer. `lakelog metrics` prints the figures of topics."),
    *_HELP,
)
