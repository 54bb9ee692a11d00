"""Typed keys of the search attributes that are set when a run starts."""

from __future__ import annotations

from temporalio.common import SearchAttributeKey

from domain.search_attributes import TASK_ATTEMPT, TASK_DEFINITION, TASK_ID, TASK_SUBMITTER

TASK_ID_KEY = SearchAttributeKey.for_keyword(TASK_ID)
DEFINITION_KEY = SearchAttributeKey.for_keyword(TASK_DEFINITION)
SUBMITTER_KEY = SearchAttributeKey.for_keyword(TASK_SUBMITTER)
ATTEMPT_KEY = SearchAttributeKey.for_int(TASK_ATTEMPT)
