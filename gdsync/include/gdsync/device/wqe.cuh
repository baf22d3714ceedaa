// Work requests in the card's format (mlx5dv.h: `mlx5_wqe_ctrl_seg`, `_raddr_seg`, `_data_seg`, `_atomic_seg`,
// `_inl_data_seg`): segments of 16 bytes, big endian, each written by one store. None is longer than a 64-byte block.
#ifndef GDSYNC_DEVICE_WQE_CUH
#define GDSYNC_DEVICE_WQE_CUH

#include "atomics.cuh"
#include "queue.cuh"

namespace gdsync {

// Maximum inline bytes of one request.
static const u32 MAX_INLINE_PUT = 28;
static const u32 MAX_INLINE_SEND = 44;
// Maximum bytes of one request from or to memory. (The card reads a count of 0 as 2^31, so an empty request has no data segment.)
static const u32 MAX_BYTES = 0x7fffffff;

namespace detail {

static const u32 OPCODE_WRITE = 0x08;
static const u32 OPCODE_SEND = 0x0a;
static const u32 OPCODE_READ = 0x10;
static const u32 OPCODE_COMPARE_SWAP = 0x11;
static const u32 OPCODE_FETCH_ADD = 0x12;
// The byte `fm_ce_se` of the control segment: write a completion entry (`MLX5_WQE_CTRL_CQ_UPDATE`). Without it the
// card writes one only if the request fails.
static const u32 SIGNALED = 8;
// The same byte: start after earlier reads and atomics (`MLX5_WQE_CTRL_FENCE`).
static const u32 FENCE = 4 << 5;
// The highest bit of a data segment's count: the data are inline.
static const u32 INLINE = 0x80000000;

// Writes the segments of one block in order; the control segment, which holds their number, last.
class Block {
  public:
    GDSYNC_DEVICE Block(const gdsync_device_qp &qp, u64 index)
        : at_(block_of(qp, index)), index_((u32)index), qpn_(qp.qpn), units_(1) {}

    GDSYNC_DEVICE void put(u32 a, u32 b, u32 c, u32 d) {
        store_16_bytes(at_ + units_ * 16, a, b, c, d);
        units_ += 1;
    }

    GDSYNC_DEVICE void put_remote(u64 address, u32 rkey) {
        put(big_endian((u32)(address >> 32)), big_endian((u32)address), big_endian(rkey), 0);
    }

    GDSYNC_DEVICE void put_data(u64 address, u32 lkey, u32 bytes) {
        if (bytes != 0) {
            put(big_endian(bytes), big_endian(lkey), big_endian((u32)(address >> 32)), big_endian((u32)address));
        }
    }

    GDSYNC_DEVICE void put_operands(u64 swap_or_add, u64 compare) {
        put(big_endian((u32)(swap_or_add >> 32)), big_endian((u32)swap_or_add), big_endian((u32)(compare >> 32)),
            big_endian((u32)compare));
    }

    // The count, followed by the bytes, in as many segments as needed.
    GDSYNC_DEVICE void put_inline(const u8 *bytes, u32 count) {
        put(big_endian(INLINE | count), word(bytes, count, 0), word(bytes, count, 4), word(bytes, count, 8));
        GDSYNC_DEVICE_LOOP
        for (u32 at = 12; at < count; at += 16) {
            put(word(bytes, count, at), word(bytes, count, at + 4), word(bytes, count, at + 8), word(bytes, count, at + 12));
        }
    }

    // Writes the control segment. Returns its first 8 bytes: the value for the doorbell register, if this is the last block.
    GDSYNC_DEVICE u64 finish(u32 opcode, bool signaled, bool fenced = false) {
        const u32 low = big_endian((index_ & 0xffff) << 8 | opcode);
        const u32 high = big_endian(qpn_ << 8 | units_);
        store_16_bytes(at_, low, high, big_endian((signaled ? SIGNALED : 0) | (fenced ? FENCE : 0)), 0);
        return (u64)high << 32 | low;
    }

  private:
    // Four bytes, with zeroes after the end. Read one by one: they may have any alignment.
    static GDSYNC_DEVICE u32 word(const u8 *bytes, u32 count, u32 at) {
        u32 value = 0;
        for (u32 i = 0; i < 4 && at + i < count; i++) {
            value |= (u32)bytes[at + i] << (8 * i);
        }
        return value;
    }

    u8 *at_;
    u32 index_;
    u32 qpn_;
    // Number of segments, including the control segment.
    u32 units_;
};

} // namespace detail
} // namespace gdsync

#endif
