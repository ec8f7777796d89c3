"""A link between two network namespaces that takes its time: a process with one end in each of them.

    python slow_link.py DEVICE DELAY_MS NAMESPACE NAMESPACE

Says "there" when the devices are. Packets that leave by the device in one namespace arrive by that in the
other, so many milliseconds later.
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
    """The file of a new device in a namespace."""
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
    underway: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, underway[0][0] - time.monotonic()) if underway else None
        for end in select.select([one, other], [], [], wait_s)[0]:
            packet = os.read(end, _MOST_BYTES)
            underway.append((time.monotonic() + delay_s, across[end], packet))
        while underway and underway[0][0] <= time.monotonic():
            _, end, packet = underway.popleft()
            os.write(end, packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
