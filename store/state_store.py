"""The state store as the application writes it: one method a transition, each a compare-and-set in one round trip."""

from __future__ import annotations

from datetime import timedelta

from store.claims import Claims
from store.database import Database
from store.requests import Requests
from store.steps import Forward, Steps, Undo
from store.tasks import Tasks


class StateStore:
    """The writers of tasks and steps, by who writes: dispatchers, attempts, people."""

    def __init__(self, database: Database, *, claim_within: timedelta = timedelta(seconds=10)) -> None:
        self.database = database
        self.tasks = Tasks(database)
        self.claims = Claims(self.tasks, claim_within)
        self.steps = Steps(self.tasks, claim_within)
        self.forward, self.undo = Forward(self.steps), Undo(self.steps)
        self.requests = Requests(self.tasks)
