// A queue pair for kernels: plain data, which the library fills in (`gdsync::device::DeviceQp` in Rust).
//
// All work requests of kernels are one 64-byte block long, so blocks and requests are counted alike, from the queue
// pair's connection on, in 64 bits: nothing wraps. The card's formats hold the low 16 bits.
#ifndef GDSYNC_DEVICE_QUEUE_CUH
#define GDSYNC_DEVICE_QUEUE_CUH

#include "platform.cuh"

// The version of the two structures below. Posts of a kernel compiled for another version are refused (`status::invalid`).
#define GDSYNC_DEVICE_QP_VERSION 1u

// `flags` of gdsync_device_qp: the doorbell is a mailbox, whose content, the number of posted blocks, the CPU forwards.
#define GDSYNC_DEVICE_QP_MAILBOX 1u

// State shared by all threads that use a queue. Words that different threads write are 64 bytes apart.
struct gdsync_device_state {
    // Blocks that callers have reserved.
    unsigned long long reserved;
    unsigned long long pad0[7];
    // Blocks whose requests are written, without a gap; never more than `reserved`. The highest bit is GDSYNC_DEVICE_RINGING.
    unsigned long long ready;
    unsigned long long pad1[7];
    // Blocks for which the card was rung. Written after `ready`, but other threads may see it first.
    unsigned long long posted;
    unsigned long long pad2[7];
    // Blocks whose requests have completed, and are free again.
    unsigned long long completed;
    // Completion entries that were read.
    unsigned long long consumed;
    // The lock of the thread that reads completion entries.
    unsigned long long poll_lock;
    unsigned long long pad3[5];
    // 0, or the first failure, which stays: GDSYNC_DEVICE_ERROR_*, the vendor's syndrome << 8, the syndrome.
    unsigned long long error;
    unsigned long long pad4[7];
};

// In `ready`: a thread is ringing the card.
#define GDSYNC_DEVICE_RINGING (1ull << 63)

// The card reported a failed request: syndromes in the low 16 bits.
#define GDSYNC_DEVICE_ERROR_WORK 0x10000ull
// A thread of this queue has made no progress inside a call for longer than `stall_ns`.
#define GDSYNC_DEVICE_ERROR_STALLED 0x20000ull
// The card wrote an invalid completion entry.
#define GDSYNC_DEVICE_ERROR_COMPLETION 0x40000ull
// The host has taken the queue pair back.
#define GDSYNC_DEVICE_ERROR_RETURNED 0x80000ull

// Addresses are those of the kernel's device.
struct gdsync_device_qp {
    // Ring of the send queue, 64 bytes per block.
    unsigned long long send_ring;
    // Word of the doorbell record that counts send blocks: 32 bits, big endian.
    unsigned long long send_record;
    // Doorbell register, or mailbox: 64 bits.
    unsigned long long doorbell;
    // Ring of the send completion queue, 64 bytes per entry.
    unsigned long long completion_ring;
    // Word of its doorbell record with the consumer index: 32 bits, big endian.
    unsigned long long completion_record;
    // gdsync_device_state, in memory of the GPU or of the host.
    unsigned long long state;
    // Number of blocks of the ring, minus one.
    unsigned int send_mask;
    // Number of entries of the completion ring, minus one.
    unsigned int completion_mask;
    // Number of the queue pair.
    unsigned int qpn;
    // Maximum number of outstanding blocks, for which both rings have room.
    unsigned int limit;
    // GDSYNC_DEVICE_QP_*.
    unsigned int flags;
    // GDSYNC_DEVICE_QP_VERSION.
    unsigned int version;
    // How long a thread waits for another thread in the middle of a call, in nanoseconds.
    unsigned long long stall_ns;
    unsigned long long reserved[6];
};

static_assert(sizeof(gdsync_device_qp) == 128, "as the library's");
static_assert(sizeof(gdsync_device_state) == 320, "as the library's");

namespace gdsync {

// The result of a call.
enum class status : int {
    ok = 0,
    // The send queue is full. Nothing was posted.
    no_room = 1,
    // The time limit was reached. Nothing is lost: wait again.
    timed_out = 2,
    // The queue pair has failed: see `error`.
    failed = 3,
    // The request, or the queue pair's description, is invalid. Nothing was posted.
    invalid = 4,
    // A rank is dead that might set the notification that the call waits for: see `notify_waitsome`.
    peer_dead = 5,
};

namespace detail {

GDSYNC_DEVICE gdsync_device_state *state_of(const gdsync_device_qp &qp) { return (gdsync_device_state *)qp.state; }

GDSYNC_DEVICE u8 *block_of(const gdsync_device_qp &qp, u64 index) {
    return (u8 *)qp.send_ring + (index & qp.send_mask) * 64;
}

} // namespace detail
} // namespace gdsync

#endif
