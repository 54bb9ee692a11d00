"""What a local stack does not take over from the shell: whatever changes where its processes connect to, or how."""

from __future__ import annotations

import os

_PREFIXES = ("PG", "TEMPORAL_", "SSL", "OPENSSL_", "OTEL_")
_NAMES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SUFFIX = "_PROXY"


def leave_shell_behind() -> None:
    """Take all of that out of this process's environment, and so out of its children's."""
    for name in [n for n in os.environ if _leads_elsewhere(n)]:
        del os.environ[name]


def plain_environment() -> dict[str, str]:
    """Environment of a child that needs no settings of ours: a server, a simulated service."""
    return {n: v for n, v in os.environ.items() if not n.startswith("SAS_") and not _leads_elsewhere(n)}


def python_path(root: str) -> str:
    """Where a child looks for packages: in `root`, then wherever we do."""
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


def _leads_elsewhere(name: str) -> bool:
    return name.startswith(_PREFIXES) or name in _NAMES or name.upper().endswith(_SUFFIX)
