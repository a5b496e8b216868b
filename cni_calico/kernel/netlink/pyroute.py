"""pyroute2's sockets, for what no CNI call waits for: tunnel devices and their entries.

Rule: every call ends with its deadline. The library's sockets have no time-outs of their own: they never block, and its
event loop would wait for ever, so the loop is ours. After a call that has not ended in time its socket is closed,
together with the answers that may still come; the next call opens a fresh one.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Collection
from typing import Any, Self

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import DeadlineExceeded, KernelError


def iproute() -> PyrouteSocket:
    """For links, addresses, neighbours and forwarding entries."""
    from pyroute2 import AsyncIPRoute

    return PyrouteSocket(AsyncIPRoute)


class PyrouteSocket:
    """Its calls are made in the namespace that the calling thread is in; for one thread, in which no event loop runs.

    ``make`` is a class of the library that works with asyncio. Raises KernelError.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        import asyncio

        self._make = make
        with Doing("wait for the kernel's answers"):
            self._loop = asyncio.new_event_loop()
        self._socket: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._forget()
        finally:
            self._loop.close()

    def call(
        self,
        doing: str,
        ask: Callable[[Any], Awaitable[Any]],
        deadline: Deadline,
        *,
        point: str = "",
        tolerated: Collection[int] = (),
    ) -> list[Any]:
        """The answers to what ``ask`` asks of the library's socket; none after an error that is ``tolerated``.

        Raises KernelError, DeadlineExceeded.
        """
        import asyncio

        from pyroute2.netlink.exceptions import NetlinkError

        left_s = deadline.require(doing)
        try:
            if point:
                faults.before(point)
            answers = self._loop.run_until_complete(asyncio.wait_for(self._answers(ask), left_s))
            if point:
                faults.after(point)
            return answers
        except NetlinkError as e:
            if e.code in tolerated:
                return []
            raise KernelError(f"cannot {doing}: {e.args[-1] if e.args else e}", errno=e.code or 0) from e
        except TimeoutError as e:
            self._forget()
            raise DeadlineExceeded(f"cannot {doing}: the kernel did not answer in time") from e
        except OSError as e:
            raise KernelError(f"cannot {doing}: {e.strerror or e}", errno=e.errno or 0) from e

    async def _answers(self, ask: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        if self._socket is None:
            fresh = self._make()
            try:
                await fresh.setup_endpoint()
            except BaseException:
                fresh.close()
                raise
            self._socket = fresh
        answers = await ask(self._socket)
        if isinstance(answers, AsyncIterable):
            return [answer async for answer in answers]
        return list(answers)

    def _forget(self) -> None:
        """Close the socket, if there is one."""
        unused, self._socket = self._socket, None
        if unused is not None:
            self._loop.run_until_complete(_close(unused))


async def _close(unused: Any) -> None:
    import asyncio

    unused.close()
    await asyncio.sleep(0)  # the transport lets go of it in the loop's next turn
