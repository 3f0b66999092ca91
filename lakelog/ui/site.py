"""What all pages share: the topics, the options, the sessions, and the plans that were shown."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from lakelog.ui.access.options import UiOptions
from lakelog.ui.access.sessions import Sessions
from lakelog.ui.root_look import RootWatcher
from storage_engine.topic.clean.cleaning_plan import Plan, encode_plan
from storage_engine.topic.topics import Topics

MOST_PLANS = 64
"""So many plans that were shown can still be applied. Of more plans, the oldest are forgotten."""


class Site:
    """One root and its server. Several threads may use it at the same time."""

    def __init__(self, topics: Topics, options: UiOptions, warn: Callable[[str], None]) -> None:
        """
        Args:
            warn: called with one line for each change of the root, and for each problem that no page shows.
        """
        self._topics = topics
        self.options = options
        self.warn = warn
        self.sessions = Sessions(topics.clock.now_ms)
        self.watcher = RootWatcher(self.topics)
        self.changing = threading.Lock()
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()

    def topics(self) -> Topics:
        """The topics, for one request. The offsets in log/, with which states are compared, are read again."""
        return Topics(self._topics.storage, self._topics.broker, self._topics.clock)

    @property
    def uri(self) -> str:
        """The path or URI of the root."""
        return self._topics.storage.uri

    def now_ms(self) -> int:
        """The current time, in milliseconds since 1970."""
        return self._topics.clock.now_ms()

    def keep_plan(self, plan: Plan) -> str:
        """Keep a plan that is shown, so that it can be applied. Returns its name."""
        name = hashlib.sha256(encode_plan(plan)).hexdigest()
        with self._lock:
            self._plans.pop(name, None)
            self._plans[name] = plan
            while len(self._plans) > MOST_PLANS:
                del self._plans[next(iter(self._plans))]
        return name

    def kept_plan(self, name: str) -> Plan | None:
        """A plan by its name; None if the server no longer has the plan."""
        with self._lock:
            return self._plans.get(name)
