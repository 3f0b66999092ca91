"""The options of each of Kafka's tools (Kafka 4.3.1), as rows for kafka_options.py.

A row has three texts: the option, what to type in lakelog (empty if lakelog refuses the option), and what differs. For a
refused option, the third text is the reason, which the error message contains as its remedy.
"""

from __future__ import annotations

Rows = tuple[tuple[str, str, str], ...]

_NO_BROKER = "Lakelog has no broker: give the root with --root, or a log directory with --kafka-dir."
_NO_BROKER_OF_ROOT = "Lakelog has no broker: give the root with --root."
_NO_CLIENT = (
    "Lakelog does not connect to a broker. Set the options of the storage with environment variables (docs/STORAGE.md)."
)
_HELP: Rows = (("--help", "--help", ""), ("--version", "", "Type `lakelog --version`."))

DUMP_LOG: Rows = (
    ("--files", "--files", "You can also give the files as arguments, without this option."),
    ("--print-data-log", "--print-data-log", ""),
    ("--deep-iteration", "--deep-iteration", ""),
    ("--skip-record-metadata", "--skip-record-metadata", "Not allowed together with --format jsonl."),
    ("--max-bytes", "--max-bytes", ""),
    ("--index-sanity-check", "--index-sanity-check", ""),
    ("--verify-index-only", "--verify-index-only", ""),
    (
        "--max-message-size", "--max-message-size",
        ("Default: no limit. Kafka's default is 5 MiB. If an index entry belongs to a larger batch, Kafka's tool ends"
        " with a stack trace."),
    ),
    (
        "--offsets-decoder", "--offsets-decoder",
        "Give only one decoder. If you give several, Kafka's tool uses one of them.",
    ),
    ("--transaction-log-decoder", "--transaction-log-decoder", "Give only one decoder."),
    (
        "--cluster-metadata-decoder", "--cluster-metadata-decoder",
        "Give only one decoder. The text after `Error at` differs from the text of Kafka's tool.",
    ),
    (
        "--key-decoder-class", "--key-decoder-class CLASS",
        ("Lakelog has only StringDecoder, IntegerDecoder and LongDecoder of org.apache.kafka.tools.api. If a key has"
         " too few bytes for the decoder, Kafka's tool ends. Lakelog prints the reason. Not allowed together with --format"
         " jsonl."),
    ),
    ("--value-decoder-class", "--value-decoder-class CLASS", "See --key-decoder-class."),
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
        ("Regular expressions have Python's syntax; in Kafka's tool, Java's syntax. If there is a topic with exactly"
         " the name a.b, --topic a.b means only this topic. In Kafka, a.b also matches a-b, because the dot matches"
         " every character."),
    ),
    ("--partitions", "--partitions", ""),
    (
        "--topic-partitions", "--topic-partitions",
        "Regular expressions have Python's syntax; in Kafka's tool, Java's syntax.",
    ),
    (
        "--time", "--time",
        ("Times below -6 are refused. Lakelog has no tiered storage. Therefore -4 (earliest-local) prints the log start"
        " offset. -5 (latest-tiered) and -6 (earliest-pending-upload) print nothing, as with a broker without tiered"
        " storage."),
    ),
    (
        "--exclude-internal-topics", "--exclude-internal-topics",
        ("Usually only a log directory (--kafka-dir) has internal topics. One internal topic is __cluster_metadata, which a"
         " broker never lists."),
    ),
    ("--command-config", "", _NO_CLIENT),
    *_HELP,
)  # fmt: skip

_ONLY_TOPICS = (
    "Lakelog has settings only for topics and for the root. For the settings of the root, use `lakelog broker`."
)
CONFIGS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--bootstrap-controller", "", _NO_BROKER_OF_ROOT),
    ("--command-config", "", _NO_CLIENT),
    ("--alter", "--alter", ""),
    ("--describe", "--describe", "Topics are sorted by name, but `p.q` and `p-q` come before `p`."),
    ("--all", "--all", "The output does not contain keys that have no effect in Lakelog."),
    ("--add-config", "--add-config", ""),
    ("--add-config-file", "--add-config-file", "Not allowed together with --add-config. Kafka has the same rule."),
    ("--delete-config", "--delete-config",
        "An unknown key is an error. A key that the topic does not set is not an error, as in Kafka's tool."),
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
        ("The text after `error:` differs from the text of Kafka's tool. The output lists the partitions in the order"
        " of the file. Kafka refuses topics whose cleanup.policy does not contain delete; Lakelog deletes their records, too,"
        " so check the topics in the file."),
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

_COMMITS = "Lakelog has no Kafka producer. To set the number of records in a commit, use --batch-records."
PRODUCER_PERF_TEST: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--topic", "--topic", ""),
    ("--num-records", "--num-records", ""),
    ("--record-size", "--record-size", ""),
    ("--payload-file", "--payload-file", ""),
    (
        "--payload-delimiter",
        "--payload-delimiter",
        "The value is plain text. In Kafka's tool, the value is a regular expression.",
    ),
    ("--payload-monotonic", "--payload-monotonic", ""),
    ("--throughput", "--throughput", "Default: -1, no limit. Required in Kafka."),
    (
        "--warmup-records",
        "--warmup-records",
        "Each commit contains either only warm-up records or only measured records.",
    ),
    ("--reporting-interval", "--reporting-interval", ""),
    ("--producer-props", "", _COMMITS),
    ("--command-property", "", _COMMITS),
    ("--producer.config", "", _COMMITS),
    ("--command-config", "", _COMMITS),
    ("--print-metrics", "", "Lakelog has no producer. `lakelog metrics` prints the figures of topics."),
    (
        "--transactional-id",
        "--transactional-id",
        "Lakelog's transactions have no names. Any name turns transactions on.",
    ),
    ("--transaction-duration-ms", "--transaction-duration-ms", ""),
    ("--help", "--help", ""),
)

_NO_CONSUMER = "Lakelog reads the files of the log without a Kafka consumer, so this option would have no effect."
CONSUMER_PERF_TEST: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--topic", "--topic", ""),
    ("--include", "--include", "Regular expressions have Python's syntax; in Kafka's tool, Java's syntax."),
    ("--num-records", "--num-records", ""),
    ("--messages", "--messages", "Also deprecated in Kafka."),
    (
        "--from-latest",
        "",
        "The command does not wait for new records. Without this option, the command reads from the start.",
    ),
    (
        "--timeout",
        "--timeout",
        "The command only prints this value in its warning, because it does not wait for new records.",
    ),
    ("--show-detailed-stats", "--show-detailed-stats", ""),
    ("--reporting-interval", "--reporting-interval", ""),
    (
        "--date-format",
        "--date-format",
        "The pattern may contain only the letters y, M, d, H, m, s and S, and characters that are not letters.",
    ),
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
