"""Lists the types of the records in a broker's topic __consumer_offsets, as Kafka 4.3.1 declares them (group-coordinator,
messages *Key and *Value).

A type has a number that never changes. A value has versions, and a new version adds or removes fields. Versions after
the first flexible version add only tagged fields, so that older programs can read the value.
"""

from __future__ import annotations

from dataclasses import dataclass

_ALWAYS = 2**15 - 1


@dataclass(frozen=True)
class Field:
    """A field of a message.

    name: the name of the field in Kafka's JSON.
    kind: int8, int16, uint16, int32, int64, uuid, string, bytes, or {} for a struct. A [] before the kind means an array of
        this kind; a ? after the kind means that the field may be null.
    fields: the fields of the struct.
    since, until: the first and the last version that has the field.
    tag: the number of a tagged field; None if the field is not tagged.
    default: the value of a tagged field that is missing.
    """

    name: str
    kind: str
    fields: tuple[Field, ...] = ()
    since: int = 0
    until: int = _ALWAYS
    tag: int | None = None
    default: object = None


@dataclass(frozen=True)
class Message:
    """The fields of a key or of a value, in order.

    last_version: the last known version.
    flexible_since: the first flexible version.
    """

    fields: tuple[Field, ...]
    last_version: int = 0
    flexible_since: int = 0


CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups of consumers, in contrast to those of Kafka Connect."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""A uuid of zeros: no topic has this id."""
LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

_GROUP = (Field("groupId", "string"),)
_MEMBER = (*_GROUP, Field("memberId", "string"))
_OFFSET = (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))
_PARTITIONS = (Field("topicId", "uuid"), Field("partitions", "[]int32"))
_NAMED_PARTITIONS = (Field("topicId", "uuid"), Field("topicName", "string"), Field("partitions", "[]int32"))
_EPOCHS = Field("assignmentEpochs", "[]int32?", tag=0, default=[])
_HELD_PARTITIONS = (*_PARTITIONS, _EPOCHS)
_TASKS = (Field("subtopologyId", "string"), Field("partitions", "[]int32"))
_HELD_TASKS = (*_TASKS, _EPOCHS)
_PAIR = (Field("key", "string"), Field("value", "string"))
_CREATED_TOPIC = (
    Field("name", "string"), Field("partitions", "int32"), Field("replicationFactor", "int16"),
    Field("topicConfigs", "[]{}", _PAIR),
)  # fmt: skip
_TARGET = Message((Field("assignmentEpoch", "int32"), Field("assignmentTimestamp", "int64", tag=0, default=0)))
_TARGET_PARTITIONS = Message((Field("topicPartitions", "[]{}", _PARTITIONS),))
_MEMBER_EPOCHS = (Field("memberEpoch", "int32"), Field("previousMemberEpoch", "int32"), Field("state", "int8"))
_CLIENT = (Field("clientId", "string"), Field("clientHost", "string"))

_OFFSET_VALUE = Message(
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0, default=NO_ID),
    ),
    last_version=4,
    flexible_since=4,
)
_GROUP_VALUE = Message(
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string?"),
        Field("leader", "string?"),
        Field("currentStateTimestamp", "int64", since=2),
        Field(
            "members", "[]{}",
            (
                Field("memberId", "string"),
                Field("groupInstanceId", "string?", since=3),
                *_CLIENT,
                Field("rebalanceTimeout", "int32", since=1),
                Field("sessionTimeout", "int32"),
                Field("subscription", "bytes"),
                Field("assignment", "bytes"),
            ),
        ),
    ),
    last_version=4,
    flexible_since=4,
)  # fmt: skip
_CONSUMER = Message(
    (
        Field("instanceId", "string?"),
        Field("rackId", "string?"),
        *_CLIENT,
        Field("subscribedTopicNames", "[]string"),
        Field("subscribedTopicRegex", "string?"),
        Field("rebalanceTimeoutMs", "int32"),
        Field("serverAssignor", "string?"),
        Field(
            "classicMemberMetadata", "{}?",
            (
                Field("sessionTimeoutMs", "int32"),
                Field("supportedProtocols", "[]{}", (Field("name", "string"), Field("metadata", "bytes"))),
            ),
            tag=0,
            default={"sessionTimeoutMs": 0, "supportedProtocols": []},
        ),
    )
)  # fmt: skip
_CONSUMED_TOPICS = Message(
    (
        Field(
            "topics", "[]{}",
            (
                Field("topicId", "uuid"),
                Field("topicName", "string"),
                Field("numPartitions", "int32"),
                Field("partitionMetadata", "[]{}", (Field("partition", "int32"), Field("racks", "[]string"))),
            ),
        ),
    )
)  # fmt: skip
_STREAMS_MEMBER = Message(
    (
        Field("instanceId", "string?"),
        Field("rackId", "string?"),
        *_CLIENT,
        Field("rebalanceTimeoutMs", "int32"),
        Field("topologyEpoch", "int32"),
        Field("processId", "string"),
        Field("userEndpoint", "{}?", (Field("host", "string"), Field("port", "uint16"))),
        Field("clientTags", "[]{}", _PAIR),
    )
)
_TOPOLOGY = Message(
    (
        Field("epoch", "int32"),
        Field(
            "subtopologies", "[]{}",
            (
                Field("subtopologyId", "string"),
                Field("sourceTopics", "[]string"),
                Field("sourceTopicRegex", "[]string"),
                Field("stateChangelogTopics", "[]{}", _CREATED_TOPIC),
                Field("repartitionSinkTopics", "[]string"),
                Field("repartitionSourceTopics", "[]{}", _CREATED_TOPIC),
                Field(
                    "copartitionGroups", "[]{}",
                    (
                        Field("sourceTopics", "[]int16"),
                        Field("sourceTopicRegex", "[]int16"),
                        Field("repartitionSourceTopics", "[]int16"),
                    ),
                ),
            ),
        ),
    )
)  # fmt: skip

RECORD_TYPES: dict[int, tuple[tuple[Field, ...], Message]] = {
    LEGACY_OFFSET_COMMIT: (_OFFSET, Message(_OFFSET_VALUE.fields, flexible_since=_ALWAYS)),
    OFFSET_COMMIT: (_OFFSET, _OFFSET_VALUE),
    GROUP_METADATA: ((Field("group", "string"),), _GROUP_VALUE),
    3: (_GROUP, Message((Field("epoch", "int32"), Field("metadataHash", "int64", tag=0, default=0)))),
    4: (_GROUP, _CONSUMED_TOPICS),
    5: (_MEMBER, _CONSUMER),
    6: (_GROUP, _TARGET),
    7: (_MEMBER, _TARGET_PARTITIONS),
    8: (
        _MEMBER,
        Message(
            (
                *_MEMBER_EPOCHS,
                Field("assignedPartitions", "[]{}", _HELD_PARTITIONS),
                Field("partitionsPendingRevocation", "[]{}", _HELD_PARTITIONS),
            )
        ),
    ),
    10: (_MEMBER, Message((Field("rackId", "string?"), *_CLIENT, Field("subscribedTopicNames", "[]string")))),
    11: (_GROUP, Message((Field("epoch", "int32"), Field("metadataHash", "int64")))),
    12: (_GROUP, _TARGET),
    13: (_MEMBER, _TARGET_PARTITIONS),
    14: (_MEMBER, Message((*_MEMBER_EPOCHS, Field("assignedPartitions", "[]{}", _PARTITIONS)))),
    15: (
        _GROUP,
        Message(
            (
                Field("initializingTopics", "[]{}", _NAMED_PARTITIONS),
                Field("initializedTopics", "[]{}", _NAMED_PARTITIONS),
                Field("deletingTopics", "[]{}", _NAMED_PARTITIONS[:2]),
            )
        ),
    ),
    16: (
        (*_GROUP, Field("regularExpression", "string")),
        Message((Field("topics", "[]string"), Field("version", "int64"), Field("timestamp", "int64"))),
    ),
    17: (
        _GROUP,
        Message(
            (
                Field("epoch", "int32"),
                Field("metadataHash", "int64"),
                Field("validatedTopologyEpoch", "int32", tag=0, default=-1),
                Field("lastAssignmentConfigs", "[]{}?", _PAIR, tag=1, default=[]),
            )
        ),
    ),
    19: (_MEMBER, _STREAMS_MEMBER),
    20: (_GROUP, _TARGET),
    21: (_MEMBER, Message(tuple(Field(f"{kind}Tasks", "[]{}", _TASKS) for kind in ("active", "standby", "warmup")))),
    22: (
        _MEMBER,
        Message(
            (
                *_MEMBER_EPOCHS,
                *(Field(f"{kind}Tasks", "[]{}", _HELD_TASKS) for kind in ("active", "standby", "warmup")),
                *(
                    Field(f"{kind}TasksPendingRevocation", "[]{}", _HELD_TASKS)
                    for kind in ("active", "standby", "warmup")
                ),
            )
        ),
    ),
    23: (_GROUP, _TOPOLOGY),
}
"""The fields of the key, and the value, of each type by its number."""

_OWNED = (Field("topic", "string"), Field("partitions", "[]int32"))
MEMBER_CONTENTS = {
    "subscription": Message(
        (
            Field("topics", "[]string"),
            Field("userData", "bytes?"),
            Field("ownedPartitions", "[]{}", _OWNED, since=1),
            Field("generationId", "int32", since=2),
            Field("rackId", "string?", since=3),
        ),
        last_version=3,
        flexible_since=_ALWAYS,
    ),
    "assignment": Message(
        (Field("assignedPartitions", "[]{}", _OWNED), Field("userData", "bytes?")),
        last_version=3,
        flexible_since=_ALWAYS,
    ),
}
"""The contents of two fields of a member in a GROUP_METADATA value. A consumer writes the subscription; the leader of the
group writes the assignment."""
