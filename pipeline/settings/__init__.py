"""Reads the settings of a job: merges and checks a YAML file, LAKELOG_ environment variables, --set and --root.

storage_engine/config/settings_document.py parses the YAML file. `lakelog --conf` uses the same parser.

export_settings.py   declares the settings of exports
jdbc_settings.py     declares the settings of an export into a database
schema_settings.py   declares the settings of schemas
source_settings.py   declares the settings of an ingest's source
overlays.py          finds the setting to which a LAKELOG_ variable or a --set refers
model.py             declares the settings, with their documentation
values.py            defines the types of the values, with their checks
settings_loading.py  merges the four sources; each error names the place of the mistake
"""

from pipeline.settings.export_settings import ExportSettings
from pipeline.settings.model import (
    IngestSettings,
    JobTopics,
    Settings,
    TopicDefinition,
)
from pipeline.settings.settings_loading import load_settings
from pipeline.settings.source_settings import SourceSettings

__all__ = [
    "ExportSettings",
    "IngestSettings",
    "JobTopics",
    "Settings",
    "SourceSettings",
    "TopicDefinition",
    "load_settings",
]
