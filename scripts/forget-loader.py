#!/usr/bin/env python3
"""Takes glibc's loader out of the list of libraries that a shared library needs: `forget-loader.py LIBRARY`.

With glibc the loader is there in any case. musl has no library of that name, takes glibc's other names for itself, and has
every function that is asked for: without this entry one library loads with both."""
import struct
import sys

PT_DYNAMIC, DT_NULL, DT_NEEDED, DT_STRTAB = 2, 0, 1, 5
PT_LOAD = 1


def segments(elf):
    offset, = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<HH", elf, 0x36)
    for index in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", elf, offset + index * size)
        yield kind, at, address, length


def main(path):
    elf = bytearray(open(path, "rb").read())
    assert elf[:6] == b"\x7fELF\x02\x01", "a little-endian 64-bit ELF file"
    _, start, _, length = next(s for s in segments(elf) if s[0] == PT_DYNAMIC)
    entries = list(struct.iter_unpack("<QQ", elf[start:start + length]))
    strings = next(value for tag, value in entries if tag == DT_STRTAB)
    strings = next(at + strings - address for kind, at, address, size in segments(elf)
                   if kind == PT_LOAD and address <= strings < address + size)
    is_loader = lambda tag, value: tag == DT_NEEDED and elf[strings + value:].startswith(b"ld-linux")
    kept = [entry for entry in entries if not is_loader(*entry)]
    kept += [(DT_NULL, 0)] * (len(entries) - len(kept))
    elf[start:start + length] = b"".join(struct.pack("<QQ", *entry) for entry in kept)
    open(path, "wb").write(elf)


main(sys.argv[1])
