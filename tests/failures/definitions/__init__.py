"""Task definitions that are made to hurt; found through SAS_DEFINITIONS."""
