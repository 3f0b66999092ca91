"""The options of each of Kafka's tools (Kafka 4.3.1), as rows for kafka_options.py.

A row has the option, what to type in lakelog (empty if lakelog refuses the option), and what differs. For a refused option,
the third text is the reason, which is the remedy of the error message.
"""

from __future__ import annotations

Rows = tuple[tuple[str, str, str], ...]

_NO_BROKER = "Lakelog has no broker: name the root with --root, or a log directory with --kafka-dir."
_NO_BROKER_OF_ROOT = "Lakelog has no broker: name the root with --root."
_NO_CLIENT = "Lakelog has no client of a broker. The environment has the settings of the storage (docs/STORAGE.md)."
_HELP: Rows = (("--help", "--help", ""), ("--version", "", "Type `lakelog --version`."))

DUMP_LOG: Rows = (
    ("--files", "--files", "Files can also be given as words, without an option."),
    ("--print-data-log", "--print-data-log", ""),
    ("--deep-iteration", "--deep-iteration", ""),
    ("--skip-record-metadata", "--skip-record-metadata", "Not with --format jsonl."),
    ("--max-bytes", "--max-bytes", ""),
    ("--index-sanity-check", "--index-sanity-check", ""),
    ("--verify-index-only", "--verify-index-only", ""),
    (
        "--max-message-size", "--max-message-size",
        "Default: no limit. In Kafka 5 MiB, and the tool ends with a stack trace at an index entry of a larger batch.",
    ),
    ("--offsets-decoder", "--offsets-decoder", "Only one decoder; Kafka's tool uses one of several."),
    ("--transaction-log-decoder", "--transaction-log-decoder", "Only one decoder."),
    (
        "--cluster-metadata-decoder", "--cluster-metadata-decoder",
        "Only one decoder. The reason after `Error at` is in Lakelog's words.",
    ),
    (
        "--key-decoder-class", "--key-decoder-class CLASS",
        ("StringDecoder, IntegerDecoder and LongDecoder of org.apache.kafka.tools.api. If the key is too short for the"
         " number, Kafka's tool ends; ours prints the reason. Not with --format jsonl."),
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
        ("A regular expression of Python instead of Java. If a topic has exactly the name a.b, only this topic is meant;"
         " in Kafka also a-b, because the dot matches every character."),
    ),
    ("--partitions", "--partitions", ""),
    ("--topic-partitions", "--topic-partitions", "A regular expression of Python instead of Java."),
    (
        "--time", "--time",
        ("Times below -6 are refused. Lakelog has no tiered storage: -4 (earliest-local) is the log start offset; -5"
         " (latest-tiered) and -6 (earliest-pending-upload) print nothing, as a broker without tiered storage."),
    ),
    (
        "--exclude-internal-topics", "--exclude-internal-topics",
        ("Only a log directory (--kafka-dir) has internal topics. __cluster_metadata is one of them; a broker never"
         " lists it."),
    ),
    ("--command-config", "", _NO_CLIENT),
    *_HELP,
)  # fmt: skip

_ONLY_TOPICS = "Lakelog has settings of topics, and of the root: `lakelog broker` describes and alters the latter."
CONFIGS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER_OF_ROOT),
    ("--bootstrap-controller", "", _NO_BROKER_OF_ROOT),
    ("--command-config", "", _NO_CLIENT),
    ("--alter", "--alter", ""),
    ("--describe", "--describe", "Topics are sorted by name."),
    ("--all", "--all", "Keys that have no effect in Lakelog are missing."),
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
        "The reason after `error:` is in Lakelog's words. Partitions have the order of the file.",
    ),
    *_HELP,
)  # fmt: skip

LOG_DIRS: Rows = (
    ("--bootstrap-server", "", _NO_BROKER),
    ("--command-config", "", _NO_CLIENT),
    ("--describe", "--describe", ""),
    ("--topic-list", "--topic-list", ""),
    ("--broker-list", "--broker-list", "Only the one broker exists."),
    *_HELP,
)

_COMMITS = "Lakelog has no producer. --batch-records says how many records one commit has."
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
    ("--warmup-records", "--warmup-records", "A warm-up ends with a commit."),
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

_NO_CONSUMER = "Lakelog has no consumer of a broker, and reads files."
CONSUMER_PERF_TEST: Rows = (
    ("--bootstrap-server", "", _NO_BROKER),
    ("--topic", "--topic", ""),
    ("--include", "--include", "A regular expression of Python instead of Java."),
    ("--num-records", "--num-records", ""),
    ("--messages", "--messages", "Deprecated in Kafka, too."),
    ("--from-latest", "", "The command does not wait for new records: without this option it reads from the start."),
    ("--timeout", "--timeout", "Only named in the warning, because the command does not wait for new records."),
    ("--show-detailed-stats", "--show-detailed-stats", ""),
    ("--reporting-interval", "--reporting-interval", ""),
    ("--date-format", "--date-format", "Only the letters y, M, d, H, m, s and S, and text without letters."),
    ("--hide-header", "--hide-header", ""),
    ("--group", "", "The positions of groups are not needed: `lakelog read --group` reads as a group."),
    ("--fetch-size", "", _NO_CONSUMER),
    ("--socket-buffer-size", "", _NO_CONSUMER),
    ("--command-config", "", _NO_CONSUMER),
    ("--command-property", "", _NO_CONSUMER),
    ("--consumer.config", "", _NO_CONSUMER),
    ("--print-metrics", "", "Lakelog has no consumer. `lakelog metrics` prints the figures of topics."),
    *_HELP,
)
