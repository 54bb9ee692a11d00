"""What an answer means: the one table by which every outcome of a call is sorted, and how an Agent says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto

from domain.faults import Fault, NoAccess, OvertakenFault, PermanentFault, StillAtWork, TransientFault, UnknownOutcome


class Meaning(StrEnum):
    """What an answer can mean."""

    SUCCESS = auto()
    PERMANENT = auto()
    TRANSIENT = auto()
    UNKNOWN = auto()
    AT_WORK = auto()
    OVERTAKEN = auto()
    NO_ACCESS = auto()


Meanings = Mapping[int | str, Meaning]
"""By status, or by the service's own code, which counts more."""

MEANINGS: Meanings = {
    401: Meaning.NO_ACCESS,
    403: Meaning.NO_ACCESS,
    407: Meaning.NO_ACCESS,
    408: Meaning.TRANSIENT,  # it says itself that it did not start
    412: Meaning.OVERTAKEN,  # the fencing token is older than one that it has seen
    425: Meaning.TRANSIENT,
    429: Meaning.TRANSIENT,
    503: Meaning.TRANSIENT,
    "in_progress": Meaning.AT_WORK,  # a twin of this request is still being worked on
}
"""Any other 2xx is a success, any other 4xx is permanent, and whatever else comes has an unknown outcome."""

FAULTS: Mapping[Meaning, type[Fault]] = {
    Meaning.TRANSIENT: TransientFault,
    Meaning.UNKNOWN: UnknownOutcome,
    Meaning.AT_WORK: StillAtWork,
    Meaning.PERMANENT: PermanentFault,
    Meaning.OVERTAKEN: OvertakenFault,
    Meaning.NO_ACCESS: NoAccess,
}


def meaning_of(status: int, code: str, *tables: Meanings) -> Meaning:
    """What an answer means, by the first of these tables that knows its code or its status, or by the common one."""
    for table in (*tables, MEANINGS):
        if (found := table.get(code, table.get(status))) is not None:
            return found
    match status // 100:
        case 2:
            return Meaning.SUCCESS
        case 4:
            return Meaning.PERMANENT
        case _:
            return Meaning.UNKNOWN
