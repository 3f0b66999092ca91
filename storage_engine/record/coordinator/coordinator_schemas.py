"""Lists the types of the records in a broker's topics __consumer_offsets and __transaction_state, as Kafka 4.3.1
declares them. In Kafka's source, the declarations are the messages *Key and *Value of group-coordinator and
transaction-coordinator.

A type has a number that never changes. A value has versions, and a new version adds or removes fields. Versions after
the first flexible version add only tagged fields, so that older programs can read the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage_engine.record.message_fields import LAST_VERSION, FieldSchema, MessageSchema

_ALWAYS = LAST_VERSION

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups of consumers, in contrast to those of Kafka Connect."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""A uuid of zeros: no topic has this id."""
LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

_GROUP = (FieldSchema("groupId", "string"),)
_MEMBER = (*_GROUP, FieldSchema("memberId", "string"))
_OFFSET = (FieldSchema("group", "string"), FieldSchema("topic", "string"), FieldSchema("partition", "int32"))
_PARTITIONS = (FieldSchema("topicId", "uuid"), FieldSchema("partitions", "[]int32"))
_NAMED_PARTITIONS = (
    FieldSchema("topicId", "uuid"),
    FieldSchema("topicName", "string"),
    FieldSchema("partitions", "[]int32"),
)
_EPOCHS = FieldSchema("assignmentEpochs", "[]int32?", tag=0, default=[])
_HELD_PARTITIONS = (*_PARTITIONS, _EPOCHS)
_TASKS = (FieldSchema("subtopologyId", "string"), FieldSchema("partitions", "[]int32"))
_HELD_TASKS = (*_TASKS, _EPOCHS)
_PAIR = (FieldSchema("key", "string"), FieldSchema("value", "string"))
_CREATED_TOPIC = (
    FieldSchema("name", "string"), FieldSchema("partitions", "int32"), FieldSchema("replicationFactor", "int16"),
    FieldSchema("topicConfigs", "[]{}", _PAIR),
)  # fmt: skip
_TARGET = MessageSchema(
    (FieldSchema("assignmentEpoch", "int32"), FieldSchema("assignmentTimestamp", "int64", tag=0, default=0))
)
_TARGET_PARTITIONS = MessageSchema((FieldSchema("topicPartitions", "[]{}", _PARTITIONS),))
_MEMBER_EPOCHS = (
    FieldSchema("memberEpoch", "int32"),
    FieldSchema("previousMemberEpoch", "int32"),
    FieldSchema("state", "int8"),
)
_CLIENT = (FieldSchema("clientId", "string"), FieldSchema("clientHost", "string"))

_OFFSET_VALUE = MessageSchema(
    (
        FieldSchema("offset", "int64"),
        FieldSchema("leaderEpoch", "int32", since=3),
        FieldSchema("metadata", "string"),
        FieldSchema("commitTimestamp", "int64"),
        FieldSchema("expireTimestamp", "int64", since=1, until=1),
        FieldSchema("topicId", "uuid", since=4, tag=0, default=NO_ID),
    ),
    last_version=4,
    flexible_since=4,
)
_GROUP_VALUE = MessageSchema(
    (
        FieldSchema("protocolType", "string"),
        FieldSchema("generation", "int32"),
        FieldSchema("protocol", "string?"),
        FieldSchema("leader", "string?"),
        FieldSchema("currentStateTimestamp", "int64", since=2),
        FieldSchema(
            "members", "[]{}",
            (
                FieldSchema("memberId", "string"),
                FieldSchema("groupInstanceId", "string?", since=3),
                *_CLIENT,
                FieldSchema("rebalanceTimeout", "int32", since=1),
                FieldSchema("sessionTimeout", "int32"),
                FieldSchema("subscription", "bytes"),
                FieldSchema("assignment", "bytes"),
            ),
        ),
    ),
    last_version=4,
    flexible_since=4,
)  # fmt: skip
_CONSUMER = MessageSchema(
    (
        FieldSchema("instanceId", "string?"),
        FieldSchema("rackId", "string?"),
        *_CLIENT,
        FieldSchema("subscribedTopicNames", "[]string"),
        FieldSchema("subscribedTopicRegex", "string?"),
        FieldSchema("rebalanceTimeoutMs", "int32"),
        FieldSchema("serverAssignor", "string?"),
        FieldSchema(
            "classicMemberMetadata", "{}?",
            (
                FieldSchema("sessionTimeoutMs", "int32"),
                FieldSchema("supportedProtocols", "[]{}", (FieldSchema("name", "string"), FieldSchema("metadata", "bytes"))),
            ),
            tag=0,
            default={"sessionTimeoutMs": 0, "supportedProtocols": []},
        ),
    )
)  # fmt: skip
_CONSUMED_TOPICS = MessageSchema(
    (
        FieldSchema(
            "topics", "[]{}",
            (
                FieldSchema("topicId", "uuid"),
                FieldSchema("topicName", "string"),
                FieldSchema("numPartitions", "int32"),
                FieldSchema("partitionMetadata", "[]{}", (FieldSchema("partition", "int32"), FieldSchema("racks", "[]string"))),
            ),
        ),
    )
)  # fmt: skip
_STREAMS_MEMBER = MessageSchema(
    (
        FieldSchema("instanceId", "string?"),
        FieldSchema("rackId", "string?"),
        *_CLIENT,
        FieldSchema("rebalanceTimeoutMs", "int32"),
        FieldSchema("topologyEpoch", "int32"),
        FieldSchema("processId", "string"),
        FieldSchema("userEndpoint", "{}?", (FieldSchema("host", "string"), FieldSchema("port", "uint16"))),
        FieldSchema("clientTags", "[]{}", _PAIR),
    )
)
_TOPOLOGY = MessageSchema(
    (
        FieldSchema("epoch", "int32"),
        FieldSchema(
            "subtopologies", "[]{}",
            (
                FieldSchema("subtopologyId", "string"),
                FieldSchema("sourceTopics", "[]string"),
                FieldSchema("sourceTopicRegex", "[]string"),
                FieldSchema("stateChangelogTopics", "[]{}", _CREATED_TOPIC),
                FieldSchema("repartitionSinkTopics", "[]string"),
                FieldSchema("repartitionSourceTopics", "[]{}", _CREATED_TOPIC),
                FieldSchema(
                    "copartitionGroups", "[]{}",
                    (
                        FieldSchema("sourceTopics", "[]int16"),
                        FieldSchema("sourceTopicRegex", "[]int16"),
                        FieldSchema("repartitionSourceTopics", "[]int16"),
                    ),
                ),
            ),
        ),
    )
)  # fmt: skip

RecordTypes = Mapping[int, tuple[tuple[FieldSchema, ...], MessageSchema]]
"""The schemas of the key and of the value, by the number of the type."""

RECORD_TYPES: Final[RecordTypes] = {
    LEGACY_OFFSET_COMMIT: (_OFFSET, MessageSchema(_OFFSET_VALUE.fields, flexible_since=_ALWAYS)),
    OFFSET_COMMIT: (_OFFSET, _OFFSET_VALUE),
    GROUP_METADATA: ((FieldSchema("group", "string"),), _GROUP_VALUE),
    3: (_GROUP, MessageSchema((FieldSchema("epoch", "int32"), FieldSchema("metadataHash", "int64", tag=0, default=0)))),
    4: (_GROUP, _CONSUMED_TOPICS),
    5: (_MEMBER, _CONSUMER),
    6: (_GROUP, _TARGET),
    7: (_MEMBER, _TARGET_PARTITIONS),
    8: (
        _MEMBER,
        MessageSchema(
            (
                *_MEMBER_EPOCHS,
                FieldSchema("assignedPartitions", "[]{}", _HELD_PARTITIONS),
                FieldSchema("partitionsPendingRevocation", "[]{}", _HELD_PARTITIONS),
            )
        ),
    ),
    10: (
        _MEMBER,
        MessageSchema((FieldSchema("rackId", "string?"), *_CLIENT, FieldSchema("subscribedTopicNames", "[]string"))),
    ),
    11: (_GROUP, MessageSchema((FieldSchema("epoch", "int32"), FieldSchema("metadataHash", "int64")))),
    12: (_GROUP, _TARGET),
    13: (_MEMBER, _TARGET_PARTITIONS),
    14: (_MEMBER, MessageSchema((*_MEMBER_EPOCHS, FieldSchema("assignedPartitions", "[]{}", _PARTITIONS)))),
    15: (
        _GROUP,
        MessageSchema(
            (
                FieldSchema("initializingTopics", "[]{}", _NAMED_PARTITIONS),
                FieldSchema("initializedTopics", "[]{}", _NAMED_PARTITIONS),
                FieldSchema("deletingTopics", "[]{}", _NAMED_PARTITIONS[:2]),
            )
        ),
    ),
    16: (
        (*_GROUP, FieldSchema("regularExpression", "string")),
        MessageSchema(
            (FieldSchema("topics", "[]string"), FieldSchema("version", "int64"), FieldSchema("timestamp", "int64"))
        ),
    ),
    17: (
        _GROUP,
        MessageSchema(
            (
                FieldSchema("epoch", "int32"),
                FieldSchema("metadataHash", "int64"),
                FieldSchema("validatedTopologyEpoch", "int32", tag=0, default=-1),
                FieldSchema("lastAssignmentConfigs", "[]{}?", _PAIR, tag=1, default=[]),
            )
        ),
    ),
    19: (_MEMBER, _STREAMS_MEMBER),
    20: (_GROUP, _TARGET),
    21: (
        _MEMBER,
        MessageSchema(tuple(FieldSchema(f"{kind}Tasks", "[]{}", _TASKS) for kind in ("active", "standby", "warmup"))),
    ),
    22: (
        _MEMBER,
        MessageSchema(
            (
                *_MEMBER_EPOCHS,
                *(FieldSchema(f"{kind}Tasks", "[]{}", _HELD_TASKS) for kind in ("active", "standby", "warmup")),
                *(
                    FieldSchema(f"{kind}TasksPendingRevocation", "[]{}", _HELD_TASKS)
                    for kind in ("active", "standby", "warmup")
                ),
            )
        ),
    ),
    23: (_GROUP, _TOPOLOGY),
}
"""The types of __consumer_offsets."""

TRANSACTION_RECORD_TYPES: Final[RecordTypes] = {
    0: (
        (FieldSchema("transactionalId", "string"),),
        MessageSchema(
            (
                FieldSchema("producerId", "int64"),
                FieldSchema("previousProducerId", "int64", tag=0, default=-1),
                FieldSchema("nextProducerId", "int64", tag=1, default=-1),
                FieldSchema("producerEpoch", "int16"),
                FieldSchema("nextProducerEpoch", "int16", tag=3, default=-1),
                FieldSchema("transactionTimeoutMs", "int32"),
                FieldSchema("transactionStatus", "int8"),
                FieldSchema(
                    "transactionPartitions", "[]{}?", (FieldSchema("topic", "string"), FieldSchema("partitionIds", "[]int32"))
                ),
                FieldSchema("transactionLastUpdateTimestampMs", "int64"),
                FieldSchema("transactionStartTimestampMs", "int64"),
                FieldSchema("clientTransactionVersion", "int16", tag=2, default=0),
            ),
            last_version=1,
            flexible_since=1,
        ),
    ),
}  # fmt: skip
"""The types of __transaction_state."""

_OWNED = (FieldSchema("topic", "string"), FieldSchema("partitions", "[]int32"))
MEMBER_CONTENTS = {
    "subscription": MessageSchema(
        (
            FieldSchema("topics", "[]string"),
            FieldSchema("userData", "bytes?"),
            FieldSchema("ownedPartitions", "[]{}", _OWNED, since=1),
            FieldSchema("generationId", "int32", since=2),
            FieldSchema("rackId", "string?", since=3),
        ),
        last_version=3,
        flexible_since=_ALWAYS,
    ),
    "assignment": MessageSchema(
        (FieldSchema("assignedPartitions", "[]{}", _OWNED), FieldSchema("userData", "bytes?")),
        last_version=3,
        flexible_since=_ALWAYS,
    ),
}
"""The contents of two fields of a member in a GROUP_METADATA value. A consumer writes the subscription; the leader of
the group writes the assignment."""
