"""A slow link between two network namespaces: a process with a network device in each of them.

    python slow_link.py DEVICE DELAY_MS NAMESPACE NAMESPACE

It prints "there" when the devices exist. Packets sent through the device in one namespace arrive through
that in the other, DELAY_MS milliseconds later.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MOST_BYTES = 65_536


def open_end(space: str, device: str) -> int:
    """Create a device in a namespace; returns its file descriptor."""
    with open(f"/var/run/netns/{space}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return end


def main(device: str, delay_ms: str, *spaces: str) -> None:
    one, other = (open_end(space, device) for space in spaces)
    print("there", flush=True)
    across, delay_s = {one: other, other: one}, float(delay_ms) / 1000
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([one, other], [], [], wait_s)[0]:
            packet = os.read(end, _MOST_BYTES)
            waiting.append((time.monotonic() + delay_s, across[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            os.write(end, packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
