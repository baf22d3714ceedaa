// The checksum that GPUrdma proposed for messages whose arrival nothing else signals.
#ifndef GDSYNC_DEVICE_CRC32_CUH
#define GDSYNC_DEVICE_CRC32_CUH

#include "atomics.cuh"

namespace gdsync {

// CRC-32 of IEEE 802.3 (reflected, polynomial 0xedb88320; "123456789" gives 0xcbf43926) of bytes that a card may be writing: they
// are read again each time. To continue with a second part, pass the result of the first as `before`.
//
// Without a table, 8 steps per byte: for messages of some dozens of bytes. Each thread may take a part with a separate checksum.
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
