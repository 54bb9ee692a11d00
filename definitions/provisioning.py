"""A machine with a name: address and disk side by side, then the machine, then the name, which is the pivot."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from activities.agents import cloud
from domain.definition import Backoff, Definition, Results, Step, Undo


class Machine(BaseModel):
    """The business record: what is to be provisioned. `disk_gib` is in GiB."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
    region: str = Field(min_length=1, max_length=40)
    machine_type: str = Field(min_length=1, max_length=40)
    disk_gib: int = Field(ge=1, le=65_536)


def address(machine: Machine, _: Results) -> cloud.AllocateAddress:
    """An address in the region."""
    return cloud.AllocateAddress(region=machine.region)


def disk(machine: Machine, _: Results) -> cloud.CreateDisk:
    """A disk in the region."""
    return cloud.CreateDisk(region=machine.region, size_gib=machine.disk_gib)


def create(machine: Machine, results: Results) -> cloud.CreateMachine:
    """The machine, on the disk and behind the address."""
    return cloud.CreateMachine(
        region=machine.region,
        machine_type=machine.machine_type,
        address_id=results["address"]["address_id"],
        disk_id=results["disk"]["disk_id"],
    )


def register(machine: Machine, results: Results) -> cloud.RegisterName:
    """The name, for the address."""
    return cloud.RegisterName(name=machine.name, address_id=results["address"]["address_id"])


PROVISIONING = Definition(
    name="provisioning",
    version=1,
    record=Machine,
    backoff=Backoff(first=timedelta(seconds=1), factor=2, most=timedelta(minutes=1)),
    on_refused="undo",
    on_spent="undo",
    steps=(
        Step(
            name="address",
            action="cloud.allocate_address",
            request=address,
            undo=Undo("cloud.release_address"),
            within=timedelta(seconds=5),
            after=(),
        ),
        Step(
            name="disk",
            action="cloud.create_disk",
            request=disk,
            undo=Undo("cloud.delete_disk"),
            within=timedelta(seconds=5),
            after=(),
        ),
        Step(
            name="machine",
            action="cloud.create_machine",
            request=create,
            undo=Undo("cloud.delete_machine"),
            queue="cloud",
            answers_later=True,
            within=timedelta(seconds=30),
            after=("address", "disk"),
        ),
        Step(
            name="name",
            action="cloud.register_name",
            request=register,
            pivot=True,
            within=timedelta(seconds=5),
        ),
    ),
)
