"""Reads the settings of a job: merges and checks a YAML file, LAKELOG_ environment variables, --set and --root.

storage_engine/config/settings_document.py parses the YAML file. `lakelog --conf` uses the same parser.

overlays.py     finds the setting that a LAKELOG_ variable or a --set names
model.py        declares the settings, with their documentation
values.py       defines the types of the values, with their checks
loading.py      merges the four sources; each error names the place of the mistake
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
