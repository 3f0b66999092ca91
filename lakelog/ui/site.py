"""Contains the objects that all pages share: the topics, the options, the sessions, and the plans that were shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lakelog.ui.access.options import UiOptions
from lakelog.ui.access.sessions import Sessions
from lakelog.ui.background.root_watcher import RootWatcher
from lakelog.ui.background.running_changes import RunningChanges
from lakelog.ui.background.topic_plans import TopicPlans
from lakelog.ui.root_look import RootLook
from storage_engine.config import BrokerConfig
from storage_engine.errors import LogError
from storage_engine.topic.broker_settings import BrokerSettings, read_broker_settings
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from storage_engine.topic.clean.cleaning_plan import Plan

PATIENCE_SECONDS = 0.5
"""So long does a request wait for work in the background. After that, its page shows what is known."""
MOST_PLANS = 64
"""So many plans that were shown can still be applied. Of more plans, the oldest are forgotten."""


class Site:
    """One root and its server. Several threads may use it at the same time."""

    def __init__(
        self,
        topics: Topics,
        settings: BrokerSettings,
        options: UiOptions,
        warn: Callable[[str], None],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """
        Args:
            topics: the storage and the clock.
            settings: the broker settings of this run. They override those that are stored in the root.
            warn: called with one line for each change of the root, and for each problem that no page shows.
            patience_seconds: how long a request waits for work in the background.
        """
        self._topics = topics
        self._settings = settings
        self.options = options
        self.warn = warn
        self.patience_seconds = patience_seconds
        self.sessions = Sessions(topics.clock.now_ms)
        self.watcher = RootWatcher(self.topics)
        self.plans = TopicPlans(topics.clock.now_ms)
        self.changes = RunningChanges(topics.clock.now_ms, warn)
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()

    def look(self) -> RootLook:
        """The figures of all topics, as far as they are known in time.

        Raises:
            NoRootError, StorageError: the root cannot be listed, or is an empty directory.
        """
        return self.watcher.look(self.patience_seconds)

    def topics(self) -> Topics:
        """The topics, for one request. The stored settings are read again, because somebody may have changed them. If they
        are damaged, Kafka's defaults apply: then a page must not show a plan, and must not change anything."""
        try:
            return self.exact_topics()
        except LogError:
            return Topics(self._topics.storage, BrokerConfig(), self._topics.clock)

    def exact_topics(self) -> Topics:
        """The topics, for a request that makes or applies a plan, or changes a setting.

        Raises:
            CorruptionError: the stored settings are damaged.
            ConfigError: the stored settings are wrong.
            StorageError: the stored settings cannot be read.
        """
        kept = read_broker_settings(self._topics.storage)
        broker = BrokerConfig.from_mapping(replace(self._settings, kept=kept).in_force)
        return Topics(self._topics.storage, broker, self._topics.clock)

    def settings_error(self) -> LogError | None:
        """Why the stored settings cannot be read; None if they can be read."""
        try:
            self.exact_topics()
        except LogError as error:
            return error
        return None

    @property
    def uri(self) -> str:
        """The path or URI of the root."""
        return self._topics.storage.uri

    def now_ms(self) -> int:
        """The current time, in milliseconds since 1970."""
        return self._topics.clock.now_ms()

    def keep_plan(self, name: str, plan: Plan) -> None:
        """Keep a plan that is shown, so that it can be applied."""
        with self._lock:
            self._plans.pop(name, None)
            self._plans[name] = plan
            while len(self._plans) > MOST_PLANS:
                del self._plans[next(iter(self._plans))]

    def kept_plan(self, name: str) -> Plan | None:
        """A plan by its name; None if the server no longer has the plan."""
        with self._lock:
            return self._plans.get(name)
