"""Puts services, ledgers, faults and control together into one ASGI application."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from devstack.simulators.connection import ExposeTransport
from devstack.simulators.control import Controls, control_router
from devstack.simulators.faults import Injector
from devstack.simulators.ledger import Ledger
from devstack.simulators.messages import Operation, Service
from devstack.simulators.protocol import FrontDesk
from devstack.simulators.services import SERVICES
from devstack.simulators.services.machines import MachineBuilder
from devstack.simulators.services.stand_in import stand_ins


@dataclass(frozen=True)
class Settings:
    """Where the ledgers are, the seed of all draws, how long a machine takes; `stand_ins`: what else is played."""

    state_dir: Path
    seed: int = 0
    machine_delay_s: float = 1.5
    stand_ins: tuple[str, ...] = ()


def build_app(settings: Settings) -> ASGIApp:
    """Opens the ledgers and returns the application; its lifespan resumes machines and closes the ledgers."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    services = {s.name: s for s in (*SERVICES, *stand_ins(settings.stand_ins))}
    controls = {
        name: Controls(Ledger(settings.state_dir / f"{name}.sqlite3"), Injector(name, settings.seed))
        for name in services
    }
    builder = MachineBuilder(controls["cloud"].ledger, settings.machine_delay_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        builder.start()
        yield
        await builder.stop()
        for levers in controls.values():
            levers.ledger.close()

    app = FastAPI(title="Simulated services", lifespan=lifespan)
    app.include_router(control_router(controls, builder))
    for service in services.values():
        on_executed = builder.on_executed if service.name == "cloud" else None
        levers = controls[service.name]
        _add_routes(app, service, FrontDesk(levers.ledger, levers.injector, on_executed))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "state_dir": str(settings.state_dir)}

    return ExposeTransport(app)


def _add_routes(app: FastAPI, service: Service, desk: FrontDesk) -> None:
    async def probe(key: str, request: Request) -> Response:
        return await desk.probe(key, request)

    app.add_api_route(f"/{service.name}/operations/{{key:path}}", probe, name=f"probe {service.name}")
    for operation in service.operations:
        app.add_api_route(operation.path, _endpoint(desk, operation), methods=["POST"], name=operation.path)


def _endpoint(desk: FrontDesk, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await desk.effect(operation, request)

    return endpoint
