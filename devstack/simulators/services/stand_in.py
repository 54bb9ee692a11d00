"""A service that stands in for any other: every action has an effect, and answers what its caller says it would."""

from collections.abc import Iterable

from pydantic import BaseModel

from devstack.simulators.messages import Answer, Create, Json, Service, Undo, success


class Work(BaseModel):
    """A request as the real service would get it, and an answer as it would give it."""

    request: Json
    answer: Json


def stand_ins(actions: Iterable[str]) -> list[Service]:
    """The services of these actions, each `service.method`."""
    methods: dict[str, list[str]] = {}
    for action in actions:
        service, _, method = action.partition(".")
        methods.setdefault(service, []).append(method)
    return [
        Service(
            name,
            tuple(
                operation
                for method in found
                for operation in (
                    Create(f"/{name}/{method}", Work, _work),
                    Undo(f"/{name}/{method}/undo", creates=f"/{name}/{method}"),
                )
            ),
        )
        for name, found in methods.items()
    ]


def _work(work: Work, key: str) -> Answer:
    return success(200, work.answer)
