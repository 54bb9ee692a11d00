"""Forks processes whose imports are done: a worker is there in a fraction of the second and a half that it takes alone.

The server is one idle process without threads. It forks for each message on its socket, and tells of each end; when
its parent goes, it kills what it has and goes too.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

from temporalio.worker._worker import load_default_build_id

from domain.namespace import NAMESPACE

_MOST = 1 << 20
_UVICORN = ("uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto")


class Child:
    """A forked process. It is signalled by its pidfd, so never another one that got its id."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self._pidfd: int | None = None
        with suppress(ProcessLookupError):  # it has ended already: word of that is on its way
            self._pidfd = os.pidfd_open(pid)
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._code.done()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing if it has ended."""
        if self.is_alive and self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def ended(self, within_s: float = 30) -> int:
        """Wait until it has ended; its exit code, negative for a signal."""
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._code)
        except TimeoutError:
            raise TimeoutError(f"process {self.pid} has not ended; its log: {self.log_tail()}") from None

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-4000:]

    def end(self, code: int) -> None:
        """Note its end."""
        self._code.set_result(code)
        if self._pidfd is not None:
            os.close(self._pidfd)


class ForkServer:
    """Use it with `async with`."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        self._wanted: dict[int, tuple[Path, asyncio.Future[Child]]] = {}
        self._numbers = count()

    async def __aenter__(self) -> ForkServer:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, str(theirs.fileno()), pass_fds=[theirs.fileno()], process_group=0
            )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._socket.close()
        await self._process.wait()

    async def start(self, environment: Mapping[str, str], log: Path) -> Child:
        """Fork a process of `chaos.worker` with this environment and no other."""
        number = next(self._numbers)
        wanted: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._wanted[number] = log, wanted
        message = json.dumps([number, dict(environment), str(log)]).encode()
        await asyncio.get_running_loop().sock_sendall(self._socket, message)
        return await wanted

    async def _listen(self) -> None:
        try:
            while said := await asyncio.get_running_loop().sock_recv(self._socket, _MOST):
                self._hear(*json.loads(said))
        finally:
            for _, wanted in [w for w in self._wanted.values() if not w[1].done()]:
                wanted.set_exception(RuntimeError("nobody listens to the fork_server any more"))

    def _hear(self, pid: int, number: int, code: int | None) -> None:
        if code is not None:
            self._children.pop(pid).end(code)
            return
        log, wanted = self._wanted.pop(number)
        child = self._children[pid] = Child(pid, log)
        if wanted.cancelled():
            child.send(signal.SIGKILL)
        else:
            wanted.set_result(child)


def _serve(control: socket.socket) -> None:
    """Fork for every message, until there are no more."""
    wake, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring)
    children: set[int] = set()
    with suppress(ConnectionError):
        while True:
            ready, _, _ = select.select([control.fileno(), wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
                for pid, code in _ended(children):
                    control.send(json.dumps([pid, None, code]).encode())
            if control.fileno() in ready:
                if not (message := control.recv(_MOST)):
                    break
                number, environment, log = json.loads(message)
                if (pid := os.fork()) == 0:
                    control.close()
                    _become(environment, log)
                children.add(pid)
                control.send(json.dumps([pid, number, None]).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so nobody else has its id


def _prepare() -> None:
    """Do once what every child would do again: imports, also those that libraries put off, and the SDK's build id."""
    for module in (f"{NAMESPACE}chaos.worker", "pydantic.v1", "httpcore", "anyio._backends._asyncio", *_UVICORN):
        importlib.import_module(module)
    load_default_build_id()
    gc.collect()
    gc.freeze()


def _ended(children: set[int]) -> list[tuple[int, int]]:
    found = []
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            found.append((pid, os.waitstatus_to_exitcode(status)))
    return found


def _become(environment: Mapping[str, str], log: str) -> None:
    """In the child: be a process of its own, as if it had been started by itself."""
    from chaos.worker import main

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    if "LD_PRELOAD" in environment:  # which is for programs that start: it takes longer
        os.execv(sys.executable, [sys.executable, "-m", f"{NAMESPACE}chaos.worker"])  # noqa: S606 (no shell is wanted)
    try:
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    _prepare()
    _serve(socket.socket(fileno=int(sys.argv[1])))
