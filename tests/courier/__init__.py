"""An Agent and a pipeline kept elsewhere, of a service without tombstones (SAS_AGENTS, SAS_PIPELINES)."""
