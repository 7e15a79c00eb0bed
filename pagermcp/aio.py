"""Many fsyncs by two system calls, as Linux offers it (io_submit(2), IOCB_CMD_FSYNC, since 4.18).

The system does the same as for fsync(2), for all of them at the same time, so that they share a commit of the disk's
journal, and one flush of its cache. Python has no call for that, and threads would have to be woken, one for each.
"""

import contextlib
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Sequence

MOST = 64

_FSYNC = 2  # IOCB_CMD_FSYNC, linux/aio_abi.h
_SYSTEM_CALLS = {  # io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
    "riscv64": (0, 1, 2, 4),
}

_mine = threading.local()


def fsync(descriptors: Sequence[int]) -> list[OSError | None] | None:
    """Sync them, at most MOST; for each why that failed, if so. None when the system can't do it: nothing was tried.

    Raises OSError when it can't be known what became of them."""
    try:
        context: _Context | None = _mine.context
    except AttributeError:
        context = _mine.context = _Context.make()
    if context is None:
        return None
    try:
        return context.fsync(descriptors)
    except BaseException:  # what is still under way must not be taken for what comes next
        _mine.context = None
        raise


def alone(descriptor: int) -> OSError | None:
    """Sync one; why that failed, if so."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    return None


class _Control(ctypes.Structure):
    """struct iocb."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags_of_rw", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("control", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Context:
    """For one thread. Raises OSError where it is not allowed, or there are too many."""

    def __init__(self, setup: int, destroy: int, submit: int, getevents: int) -> None:
        self._system_call = ctypes.CDLL(None, use_errno=True).syscall
        self._system_call.restype = ctypes.c_long
        self._destroy, self._submit, self._getevents = map(ctypes.c_long, (destroy, submit, getevents))
        self._id = ctypes.c_ulong(0)
        self._call(ctypes.c_long(setup), ctypes.c_long(MOST), ctypes.byref(self._id))
        self._controls = (_Control * MOST)()
        self._pointers = (ctypes.c_void_p * MOST)()
        self._events = (_Event * MOST)()
        for place, control in enumerate(self._controls):
            control.opcode, control.data = _FSYNC, place
            self._pointers[place] = ctypes.addressof(control)

    @staticmethod
    def make() -> "_Context | None":
        """One for this thread, if that can be had."""
        numbers = _SYSTEM_CALLS.get(platform.machine())
        if sys.platform != "linux" or sys.maxsize < 1 << 32 or numbers is None:
            return None
        try:
            return _Context(*numbers)
        except OSError:
            return None

    def __del__(self) -> None:
        if self._id:
            self._system_call(self._destroy, self._id)

    def fsync(self, descriptors: Sequence[int]) -> list[OSError | None]:
        for place, descriptor in enumerate(descriptors):
            self._controls[place].descriptor = descriptor
        errors: list[OSError | None] = [None] * len(descriptors)
        begun = 0
        with contextlib.suppress(OSError):  # of the first; it ends before another one that can't be begun, too
            begun = self._call(self._submit, self._id, ctypes.c_long(len(descriptors)), self._pointers)
        left = begun
        while left:
            with contextlib.suppress(InterruptedError):
                number = ctypes.c_long(left)
                came = self._call(self._getevents, self._id, number, number, self._events, None)
                left -= came
                for event in self._events[:came]:
                    if event.result < 0:
                        errors[event.data] = OSError(-event.result, os.strerror(-event.result))
        for place in range(begun, len(descriptors)):
            errors[place] = alone(descriptors[place])
        return errors

    def _call(self, *arguments: object) -> int:
        result: int = self._system_call(*arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
