"""The Agent of the cloud provider: addresses, disks, machines (which take long), names."""

from __future__ import annotations

from pydantic import BaseModel

from activities.agent import AnswersLater, action
from activities.asked_by_key import AskedByKey
from activities.call import Call


class AllocateAddress(BaseModel):
    """Allocate a public address in a region."""

    region: str


class Address(BaseModel):
    """The address that was allocated."""

    address_id: str
    ip: str


class CreateDisk(BaseModel):
    """Create a disk. `size_gib` is in GiB."""

    region: str
    size_gib: int


class Disk(BaseModel):
    """The disk that was created."""

    disk_id: str


class CreateMachine(BaseModel):
    """Create a machine on a disk, behind an address."""

    region: str
    machine_type: str
    address_id: str
    disk_id: str


class MachineOrder(CreateMachine):
    """What is sent for it: the service answers to `callback_url` once the machine is there."""

    callback_url: str | None


class Machine(BaseModel):
    """The machine that was created."""

    machine_id: str
    ip: str


class RegisterName(BaseModel):
    """Register a name for an address. It can't be taken back."""

    name: str
    address_id: str


class Name(BaseModel):
    """The name that was registered."""

    record_id: str


class Cloud(AskedByKey):
    """A cloud provider."""

    service = "cloud"

    @action
    async def allocate_address(self, call: Call, request: AllocateAddress) -> Address:
        """Allocate an address."""
        reply = await call.post("/addresses", request)
        return Address.model_validate(reply.body)

    @action
    async def release_address(self, call: Call) -> None:
        """Give the address back."""
        await call.undo("/addresses/undo")

    @action
    async def create_disk(self, call: Call, request: CreateDisk) -> Disk:
        """Create a disk."""
        reply = await call.post("/disks", request)
        return Disk.model_validate(reply.body)

    @action
    async def delete_disk(self, call: Call) -> None:
        """Delete the disk."""
        await call.undo("/disks/undo")

    @action
    async def create_machine(self, call: Call, request: CreateMachine) -> Machine:
        """Create a machine: 202 means that the answer comes later; asked again, the service tells what it has."""
        order = MachineOrder(**request.model_dump(), callback_url=call.callback_url)
        reply = await call.post("/machines", order)
        if reply.status == 202:
            raise AnswersLater
        return Machine.model_validate(reply.body)

    @action
    async def delete_machine(self, call: Call) -> None:
        """Delete the machine, or stop its creation."""
        await call.undo("/machines/undo")

    @action
    async def register_name(self, call: Call, request: RegisterName) -> Name:
        """Register the name. Refused for good: `name_taken`."""
        reply = await call.post("/names", request)
        return Name.model_validate(reply.body)
