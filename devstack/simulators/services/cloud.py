"""Cloud: addresses, disks, machines and names. A machine takes a while; `machines` finishes it.

A name can't be taken back (it is a pivot), and `taken.example` belongs to somebody else.
"""

import hashlib

from pydantic import BaseModel, Field

from devstack.simulators.messages import Answer, Create, Json, Service, Undo, refusal, stable_id, success

MACHINES = "/cloud/machines"


class AddressRequest(BaseModel):
    """An address in a region."""

    region: str


class DiskRequest(BaseModel):
    """A disk in a region."""

    region: str
    size_gib: int = Field(gt=0)


class MachineRequest(BaseModel):
    """A machine that uses an address and a disk. Without `callback_url` its owner has to ask."""

    region: str
    machine_type: str
    address_id: str
    disk_id: str
    callback_url: str | None = None


class NameRequest(BaseModel):
    """A name that shall lead to an address."""

    name: str = Field(min_length=1)
    address_id: str


def create_address(request: AddressRequest, key: str) -> Answer:
    """Allocates an address."""
    del request
    address_id = stable_id("address", key)
    return success(201, {"address_id": address_id, "ip": ip_of(address_id)})


def create_disk(request: DiskRequest, key: str) -> Answer:
    """Allocates a disk."""
    del request
    return success(201, {"disk_id": stable_id("disk", key)})


def begin_machine(request: MachineRequest, key: str) -> Answer:
    """Begins to create a machine."""
    del request
    return success(202, {"state": "creating", "machine_id": stable_id("machine", key)})


def finished_machine(request: MachineRequest, key: str) -> Json:
    """Returns what is known of a machine once it runs."""
    return {"machine_id": stable_id("machine", key), "ip": ip_of(request.address_id)}


def create_name(request: NameRequest, key: str) -> Answer:
    """Publishes a name."""
    if request.name == "taken.example":
        return refusal(409, "name_taken", f"{request.name} belongs to somebody else")
    return success(201, {"record_id": stable_id("record", key)})


def ip_of(address_id: str) -> str:
    """Returns the private IPv4 address that stands behind an address id."""
    digest = hashlib.sha256(address_id.encode()).digest()
    return f"10.{digest[0]}.{digest[1]}.{digest[2]}"


SERVICE = Service(
    "cloud",
    (
        Create("/cloud/addresses", AddressRequest, create_address),
        Undo("/cloud/addresses/undo", creates="/cloud/addresses"),
        Create("/cloud/disks", DiskRequest, create_disk),
        Undo("/cloud/disks/undo", creates="/cloud/disks"),
        Create(MACHINES, MachineRequest, begin_machine),
        Undo("/cloud/machines/undo", creates=MACHINES),
        Create("/cloud/names", NameRequest, create_name),
    ),
)
