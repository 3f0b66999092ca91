"""What a job is told: a YAML file, LAKELOG_ environment variables, --set and --root, checked and put together.

The file itself is read by storage_engine/settings_document.py, which `lakelog --conf` shares.

overlays.py     which setting a LAKELOG_ variable or a --set means
model.py        the settings themselves, with their documentation
loading.py      the three joined, and what is wrong said so that it can be found
"""

from pipeline.settings.loading import load_settings
from pipeline.settings.model import (
    ExportSettings,
    IngestSettings,
    JobTopics,
    Settings,
    SourceSettings,
    TopicDefinition,
)

__all__ = [
    "ExportSettings",
    "IngestSettings",
    "JobTopics",
    "Settings",
    "SourceSettings",
    "TopicDefinition",
    "load_settings",
]
