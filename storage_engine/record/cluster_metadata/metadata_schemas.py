"""Lists the types of the records in a cluster's topic __cluster_metadata, as Kafka 4.3.1 declares them. In Kafka's
source, the declarations are the files metadata/*Record.json and the messages in the control records of KRaft.

A type has a number that never changes. A later version of a type adds fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage_engine.record.message_fields import FieldSchema, MessageSchema

_BROKER = (FieldSchema("brokerId", "int32"), FieldSchema("brokerEpoch", "int64"))
_ID_AND_EPOCH = (FieldSchema("id", "int32"), FieldSchema("epoch", "int64"))
_PLACE = (FieldSchema("partitionId", "int32"), FieldSchema("topicId", "uuid"))
_ENDPOINT = (FieldSchema("name", "string"), FieldSchema("host", "string"), FieldSchema("port", "uint16"))
_RANGE = (FieldSchema("minSupportedVersion", "int16"), FieldSchema("maxSupportedVersion", "int16"))
_END_POINTS = FieldSchema("endPoints", "[]{}", (*_ENDPOINT, FieldSchema("securityProtocol", "int16")))
_FEATURES = FieldSchema("features", "[]{}", (FieldSchema("name", "string"), *_RANGE))

METADATA_RECORD_TYPES: Final[Mapping[int, tuple[str, MessageSchema]]] = {
    0: (
        "REGISTER_BROKER_RECORD",
        MessageSchema(
            (
                FieldSchema("brokerId", "int32"),
                FieldSchema("isMigratingZkBroker", "bool", since=2),
                FieldSchema("incarnationId", "uuid"),
                FieldSchema("brokerEpoch", "int64"),
                _END_POINTS,
                _FEATURES,
                FieldSchema("rack", "string?"),
                FieldSchema("fenced", "bool"),
                FieldSchema("inControlledShutdown", "bool", since=1),
                FieldSchema("logDirs", "[]uuid", since=3, tag=0, default=[]),
                FieldSchema("cordonedLogDirs", "[]uuid?", since=4, tag=1),
            ),
            last_version=4,
        ),
    ),
    1: ("UNREGISTER_BROKER_RECORD", MessageSchema(_BROKER)),
    2: ("TOPIC_RECORD", MessageSchema((FieldSchema("name", "string"), FieldSchema("topicId", "uuid")))),
    3: (
        "PARTITION_RECORD",
        MessageSchema(
            (
                *_PLACE,
                FieldSchema("replicas", "[]int32"),
                FieldSchema("isr", "[]int32"),
                FieldSchema("removingReplicas", "[]int32"),
                FieldSchema("addingReplicas", "[]int32"),
                FieldSchema("leader", "int32"),
                FieldSchema("leaderRecoveryState", "int8", tag=0, default=0),
                FieldSchema("leaderEpoch", "int32"),
                FieldSchema("partitionEpoch", "int32"),
                FieldSchema("directories", "[]uuid", since=1),
                FieldSchema("eligibleLeaderReplicas", "[]int32?", since=2, tag=1),
                FieldSchema("lastKnownElr", "[]int32?", since=2, tag=2),
            ),
            last_version=2,
        ),
    ),
    4: (
        "CONFIG_RECORD",
        MessageSchema(
            (
                FieldSchema("resourceType", "int8"),
                FieldSchema("resourceName", "string"),
                FieldSchema("name", "string"),
                FieldSchema("value", "string?"),
            )
        ),
    ),
    5: (
        "PARTITION_CHANGE_RECORD",
        MessageSchema(
            (
                *_PLACE,
                FieldSchema("isr", "[]int32?", tag=0),
                FieldSchema("leader", "int32", tag=1, default=-2),
                FieldSchema("replicas", "[]int32?", tag=2),
                FieldSchema("removingReplicas", "[]int32?", tag=3),
                FieldSchema("addingReplicas", "[]int32?", tag=4),
                FieldSchema("leaderRecoveryState", "int8", tag=5, default=-1),
                FieldSchema("directories", "[]uuid?", since=1, tag=8),
                FieldSchema("eligibleLeaderReplicas", "[]int32?", since=2, tag=6),
                FieldSchema("lastKnownElr", "[]int32?", since=2, tag=7),
            ),
            last_version=2,
        ),
    ),
    7: ("FENCE_BROKER_RECORD", MessageSchema(_ID_AND_EPOCH)),
    8: ("UNFENCE_BROKER_RECORD", MessageSchema(_ID_AND_EPOCH)),
    9: ("REMOVE_TOPIC_RECORD", MessageSchema((FieldSchema("topicId", "uuid"),))),
    10: (
        "DELEGATION_TOKEN_RECORD",
        MessageSchema(
            (
                FieldSchema("owner", "string"),
                FieldSchema("requester", "string"),
                FieldSchema("renewers", "[]string"),
                FieldSchema("issueTimestamp", "int64"),
                FieldSchema("maxTimestamp", "int64"),
                FieldSchema("expirationTimestamp", "int64"),
                FieldSchema("tokenId", "string"),
            )
        ),
    ),
    11: (
        "USER_SCRAM_CREDENTIAL_RECORD",
        MessageSchema(
            (
                FieldSchema("name", "string"),
                FieldSchema("mechanism", "int8"),
                FieldSchema("salt", "bytes"),
                FieldSchema("storedKey", "bytes"),
                FieldSchema("serverKey", "bytes"),
                FieldSchema("iterations", "int32"),
            )
        ),
    ),
    12: ("FEATURE_LEVEL_RECORD", MessageSchema((FieldSchema("name", "string"), FieldSchema("featureLevel", "int16")))),
    14: (
        "CLIENT_QUOTA_RECORD",
        MessageSchema(
            (
                FieldSchema(
                    "entity", "[]{}", (FieldSchema("entityType", "string"), FieldSchema("entityName", "string?"))
                ),
                FieldSchema("key", "string"),
                FieldSchema("value", "float64"),
                FieldSchema("remove", "bool"),
            )
        ),
    ),
    15: ("PRODUCER_IDS_RECORD", MessageSchema((*_BROKER, FieldSchema("nextProducerId", "int64")))),
    17: (
        "BROKER_REGISTRATION_CHANGE_RECORD",
        MessageSchema(
            (
                *_BROKER,
                FieldSchema("fenced", "int8", tag=0, default=0),
                FieldSchema("inControlledShutdown", "int8", since=1, tag=1, default=0),
                FieldSchema("logDirs", "[]uuid", since=2, tag=2, default=[]),
                FieldSchema("cordonedLogDirs", "[]uuid?", since=3, tag=3),
            ),
            last_version=3,
        ),
    ),
    18: (
        "ACCESS_CONTROL_ENTRY_RECORD",
        MessageSchema(
            (
                FieldSchema("id", "uuid"),
                FieldSchema("resourceType", "int8"),
                FieldSchema("resourceName", "string"),
                FieldSchema("patternType", "int8"),
                FieldSchema("principal", "string"),
                FieldSchema("host", "string"),
                FieldSchema("operation", "int8"),
                FieldSchema("permissionType", "int8"),
            )
        ),
    ),
    19: ("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", MessageSchema((FieldSchema("id", "uuid"),))),
    20: ("NO_OP_RECORD", MessageSchema(())),
    21: ("ZK_MIGRATION_STATE_RECORD", MessageSchema((FieldSchema("zkMigrationState", "int8"),))),
    22: (
        "REMOVE_USER_SCRAM_CREDENTIAL_RECORD",
        MessageSchema((FieldSchema("name", "string"), FieldSchema("mechanism", "int8"))),
    ),
    23: ("BEGIN_TRANSACTION_RECORD", MessageSchema((FieldSchema("name", "string?", tag=0),))),
    24: ("END_TRANSACTION_RECORD", MessageSchema(())),
    25: ("ABORT_TRANSACTION_RECORD", MessageSchema((FieldSchema("reason", "string?", tag=0),))),
    26: ("REMOVE_DELEGATION_TOKEN_RECORD", MessageSchema((FieldSchema("tokenId", "string"),))),
    27: (
        "REGISTER_CONTROLLER_RECORD",
        MessageSchema(
            (
                FieldSchema("controllerId", "int32"),
                FieldSchema("incarnationId", "uuid"),
                FieldSchema("zkMigrationReady", "bool"),
                _END_POINTS,
                _FEATURES,
            )
        ),
    ),
    28: ("CLEAR_ELR_RECORD", MessageSchema((FieldSchema("topicName", "string"),))),
}
"""Kafka's name and the fields of each type, by the number of the type."""

_VERSION = FieldSchema("version", "int16")
_VOTER = (FieldSchema("voterId", "int32"), FieldSchema("voterDirectoryId", "uuid", since=1))
CONTROL_RECORD_TYPES: Final[Mapping[int, tuple[str, MessageSchema]]] = {
    2: (
        "LeaderChange:",
        MessageSchema(
            (
                _VERSION,
                FieldSchema("leaderId", "int32"),
                FieldSchema("voters", "[]{}", _VOTER),
                FieldSchema("grantingVoters", "[]{}", _VOTER),
            ),
            last_version=1,
        ),
    ),
    3: ("SnapshotHeader", MessageSchema((_VERSION, FieldSchema("lastContainedLogTimestamp", "int64")))),
    4: ("SnapshotFooter", MessageSchema((_VERSION,))),
    5: ("KRaftVersion", MessageSchema((_VERSION, FieldSchema("kRaftVersion", "int16")))),
    6: (
        "KRaftVoters",
        MessageSchema(
            (
                _VERSION,
                FieldSchema(
                    "voters", "[]{}",
                    (
                        FieldSchema("voterId", "int32"),
                        FieldSchema("voterDirectoryId", "uuid"),
                        FieldSchema("endpoints", "[]{}", _ENDPOINT),
                        FieldSchema("kRaftVersionFeature", "{}", _RANGE),
                    ),
                ),
            )
        ),
    ),
}  # fmt: skip
"""What Kafka's dump tool prints before the message in a control record of KRaft, and the fields of the message, by the
type of the control record. The first field of each message is its version."""
