"""An Agent and a definition kept elsewhere, of a service without tombstones (SAS_AGENTS, SAS_DEFINITIONS)."""
