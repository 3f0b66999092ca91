"""Which topics of a broker's directories are opened, and to which topics retention and compaction are applied."""

from __future__ import annotations

import pytest

from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import ConfigError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata
from storage_engine.kafka_dir.upkeep.treatment import (
    Evidence,
    TopicTreatment,
    Treatment,
    partitions_with_one_copy,
    treat_topics,
)
from storage_engine.record.cluster_metadata.metadata_records import decode_metadata_record
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import IDS, known

MANAGED, KEPT, LEFT_ALONE = Treatment


def metadata(*values: bytes) -> ClusterMetadata:
    found = ClusterMetadata()
    found.replay(record for value in values if (record := decode_metadata_record(value)) is not None)
    return found


def treated(
    topic: str, cluster: ClusterMetadata | None, topic_id: str | None = None, **facts: object
) -> TopicTreatment:
    evidence = {"given": {}, "included": (), "tiers": False, "node_id": None, **facts}
    ids = {TopicPartition(topic, 0): topic_id or IDS.get(topic)}
    return treat_topics(Evidence(ids, cluster, **evidence), LogManagerConfig())[topic]  # type: ignore[arg-type]


def test_a_topic_of_the_metadata_is_managed_with_its_own_settings() -> None:
    found = treated("a", metadata(*known("a", {"retention.ms": "5", "min.insync.replicas": "2"})))
    assert found == TopicTreatment("a", MANAGED, "settings from __cluster_metadata", {"retention.ms": "5"})
    assert treated("a", metadata(*known("a"))).settings == {}


@pytest.mark.parametrize(
    ("cluster", "topic_id", "reason"),
    [
        (None, None, "its settings are not known, because __cluster_metadata was not read"),
        (metadata(*known("b")), None, "__cluster_metadata has no topic of this name"),
        (
            metadata(*known("a")),
            IDS["b"],
            f"the topic id in its folders is {IDS['b']}, but in __cluster_metadata {IDS['a']}",
        ),
    ],
)
def test_a_topic_without_known_settings_is_only_kept(cluster: ClusterMetadata, topic_id: str, reason: str) -> None:
    assert treated("a", cluster, topic_id) == TopicTreatment("a", KEPT, reason, {})


def test_a_folder_without_a_topic_id_is_only_kept() -> None:
    evidence = Evidence({TopicPartition("a", 0): None}, metadata(*known("a")), {}, (), tiers=False, node_id=None)
    assert treat_topics(evidence, LogManagerConfig())["a"].treatment is KEPT
    assert partitions_with_one_copy(evidence) == frozenset()


def test_an_option_gives_settings_to_a_topic_and_replaces_those_of_the_metadata() -> None:
    for cluster in (None, metadata(*known("a", {"retention.ms": "5"}))):
        found = treated("a", cluster, given={"a": {"retention.bytes": "6"}})
        assert found == TopicTreatment("a", MANAGED, "settings from --topic-config", {"retention.bytes": "6"})


def test_wrong_settings_of_an_option_are_refused_and_those_of_the_metadata_make_a_topic_kept() -> None:
    with pytest.raises(ConfigError, match=r"topic a, retention\.ms"):
        treated("a", None, given={"a": {"retention.ms": "soon"}})
    found = treated("a", metadata(*known("a", {"segment.bytes": "14"})))
    assert (found.treatment, found.settings) == (KEPT, {})
    assert "segment.bytes: expected a whole number" in found.reason


def test_internal_topics_are_kept_unless_an_option_includes_them() -> None:
    given = {"__consumer_offsets": {"cleanup.policy": "compact"}}
    reason = "it is an internal topic"
    assert treated("__consumer_offsets", None, given=given) == TopicTreatment("__consumer_offsets", KEPT, reason, {})
    assert treated("__consumer_offsets", None, tiers=True) == TopicTreatment("__consumer_offsets", KEPT, reason, {})
    assert treated("__consumer_offsets", None, given=given, included=["__consumer_offsets"]).treatment is MANAGED


def test_the_metadata_itself_is_never_opened() -> None:
    name = "__cluster_metadata"
    found = treated(name, metadata(*known("a")), given={name: {}}, included=[name])
    assert found == TopicTreatment(name, LEFT_ALONE, "KRaft alone opens it", {})


def test_tiered_topics_are_not_opened() -> None:
    tiered = metadata(*known("a", {"remote.storage.enable": "true"}), *known("b", {"remote.storage.enable": "false"}))
    assert treated("a", tiered).treatment is LEFT_ALONE
    assert treated("a", tiered, given={"a": {"retention.ms": "5"}}).treatment is LEFT_ALONE
    assert treated("b", tiered, tiers=True) == TopicTreatment("b", MANAGED, "settings from __cluster_metadata", {})
    unknown = treated("c", tiered, tiers=True)
    assert unknown.treatment is LEFT_ALONE
    assert unknown.reason.startswith("remote storage is enabled, and __cluster_metadata has no topic of this name")


def test_an_option_says_whether_a_topic_is_tiered_in_a_boolean_but_cannot_contradict_the_metadata() -> None:
    key = "remote.storage.enable"
    for value, expected in (("true", LEFT_ALONE), (" True ", LEFT_ALONE), ("false", MANAGED)):
        assert treated("a", None, given={"a": {key: value}}).treatment is expected
    with pytest.raises(ConfigError, match=r"topic a, remote\.storage\.enable: expected true or false; found 'ture'"):
        treated("a", None, given={"a": {key: "ture"}})
    for value in ("true", "ture"):
        found = treated("a", metadata(*known("a", {key: value})), given={"a": {key: "false"}})
        assert found.treatment is LEFT_ALONE


def test_a_partition_with_one_replica_has_one_copy() -> None:
    cluster = metadata(*known("a"), *known("b", replicas=(1, 2)), *known("c"))
    ids = {TopicPartition(name, 0): IDS[name] for name in "abd"} | {TopicPartition("c", 0): IDS["d"]}
    for node_id, expected in ((None, {("a", 0)}), (1, {("a", 0)}), (2, set())):
        assert partitions_with_one_copy(Evidence(ids, cluster, {}, (), tiers=False, node_id=node_id)) == expected
