// The checksum that GPUrdma proposed for messages whose arrival no other signal shows.
#ifndef GDSYNC_DEVICE_CRC32_CUH
#define GDSYNC_DEVICE_CRC32_CUH

#include "atomics.cuh"

namespace gdsync {

// CRC-32 of IEEE 802.3 (reflected, polynomial 0xedb88320; "123456789" gives 0xcbf43926) of bytes that a card may be writing: they are
// read anew each time. To go on with a second part, give the first one's as `before`.
//
// Without a table, 8 steps a byte: for messages of some dozens of bytes. Threads may each take a part that has a checksum of its own.
GDSYNC_DEVICE u32 crc32(const void *data, u64 bytes, u32 before = 0) {
    u32 crc = ~before;
    GDSYNC_DEVICE_LOOP
    for (u64 i = 0; i < bytes; i++) {
        crc ^= detail::load_relaxed_system((const u8 *)data + i);
        GDSYNC_DEVICE_LOOP
        for (u32 bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0xedb88320u & (0 - (crc & 1)));
        }
    }
    return ~crc;
}

} // namespace gdsync

#endif
