"""Two processes of Mooncake's transfer engine: the client writes to the server and reads it back, and both look at every byte.

Arguments: `server` or `client`, a folder in which they meet, and how much is written, in units of 16 MiB.
"""

import ctypes
import os
import pathlib
import sys
import time

from mooncake.engine import TransferEngine

PIECE = 16 << 20
SIZE = int(sys.argv[3]) * PIECE
LIMIT = 200  # seconds, much longer than any step takes


def until(path):
    end = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.02)
    return path.read_text()


def say(path, text=""):
    """The file is there with all of its text, or not at all."""
    whole = path.with_suffix(".new")
    whole.write_text(text)
    whole.rename(path)


def pattern():
    """A piece of which no two parts of 64 bytes are alike."""
    return b"".join(number.to_bytes(8, "little") * 8 for number in range(PIECE // 64))


def check(memory):
    expected = pattern()
    for place in range(0, SIZE, PIECE):
        number = (place // PIECE).to_bytes(8, "little")
        assert memory[place : place + 8] == number, f"the piece at {place} is another"
        assert memory[place + 8 : place + PIECE] == expected[8:], f"the piece at {place} differs"
    print("every byte as written", flush=True)


def main():
    role, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    memory = bytearray(SIZE)
    address = ctypes.addressof((ctypes.c_char * SIZE).from_buffer(memory))
    assert engine.register_memory(address, SIZE) == 0
    if role == "server":
        say(folder / "server", f"{engine.get_rpc_port()} {address}")
        until(folder / "written")
        check(memory)
        say(folder / "checked")
        until(folder / "read")
        return
    port, target = map(int, until(folder / "server").split())
    peer, piece = f"127.0.0.1:{port}", pattern()
    for place in range(0, SIZE, PIECE):
        memory[place : place + PIECE] = piece
        memory[place : place + 8] = (place // PIECE).to_bytes(8, "little")
    assert engine.transfer_sync_write(peer, address, target, SIZE) == 0
    say(folder / "written")
    until(folder / "checked")
    ctypes.memset(address, 0, SIZE)
    assert engine.transfer_sync_read(peer, address, target, SIZE) == 0
    check(memory)
    say(folder / "read")


main()
