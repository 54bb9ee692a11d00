"""The search attributes that a run carries in Temporal. They are for people, never for decisions.

All but the state are set when a run starts; the state is written once, at the end. They must exist in the
namespace before the first run: the embedded server is started with them, elsewhere an operator adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TASK_ID: Final = "TaskId"
TASK_DEFINITION: Final = "TaskDefinition"
TASK_SUBMITTER: Final = "TaskSubmitter"
TASK_ATTEMPT: Final = "TaskAttempt"
TASK_STATE: Final = "TaskState"

SEARCH_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        TASK_ID: "Keyword",
        TASK_DEFINITION: "Keyword",
        TASK_SUBMITTER: "Keyword",
        TASK_ATTEMPT: "Int",
        TASK_STATE: "Keyword",
    }
)
"""Name to Temporal type, as `temporal operator search-attribute create` takes them."""
