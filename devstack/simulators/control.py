"""The control interface: inject faults, read ledgers, start over."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter, HTTPException

from devstack.simulators.faults import FaultRule, Injector
from devstack.simulators.ledger import Ledger
from devstack.simulators.messages import Json
from devstack.simulators.report import ledger_rows, money, summary
from devstack.simulators.services.machines import MachineBuilder


@dataclass(frozen=True)
class Controls:
    """The levers of one service."""

    ledger: Ledger
    injector: Injector


def control_router(services: Mapping[str, Controls], builder: MachineBuilder) -> APIRouter:
    """Returns the routes under `/control`."""
    router = APIRouter(prefix="/control")

    def chosen(service: str) -> Controls:
        if service not in services:
            raise HTTPException(404, f"no service {service!r}; there are {', '.join(services)}")
        return services[service]

    @router.get("/ledger")
    async def all_ledgers() -> Json:
        return {name: ledger_rows(controls.ledger) for name, controls in services.items()}

    @router.get("/summary")
    async def summaries() -> Json:
        counts: Json = {name: summary(controls.ledger) for name, controls in services.items()}
        counts["payments"]["money"] = money(services["payments"].ledger)
        return counts

    @router.delete("/faults", status_code=204)
    async def clear_all_faults() -> None:
        for controls in services.values():
            controls.injector.clear()

    @router.post("/reset", status_code=204)
    async def reset() -> None:
        await builder.drop_all()
        for controls in services.values():
            controls.injector.clear(reseed=True)
            controls.ledger.clear()

    @router.post("/{service}/faults", status_code=201)
    async def add_fault(service: str, rule: FaultRule) -> dict[str, int]:
        return {"id": chosen(service).injector.add(rule)}

    @router.get("/{service}/faults")
    async def list_faults(service: str) -> list[Json]:
        return chosen(service).injector.listing()

    @router.delete("/{service}/faults", status_code=204)
    async def clear_faults(service: str) -> None:
        chosen(service).injector.clear()

    @router.get("/{service}/ledger")
    async def one_ledger(service: str, task_id: str | None = None) -> Json:
        return ledger_rows(chosen(service).ledger, task_id)

    return router
