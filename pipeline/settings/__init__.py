"""Reads the settings of a job: merges and checks a YAML file, LAKELOG_ environment variables, --set and --root.

The file itself is read by storage_engine/config/settings_document.py, which `lakelog --conf` shares.

overlays.py     which setting a LAKELOG_ variable or a --set means
model.py        the settings themselves, with their documentation
loading.py      merges the sources; each error names the place of the mistake
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
