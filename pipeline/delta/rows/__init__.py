"""The rows of an exported table: their columns, and how records become rows."""
