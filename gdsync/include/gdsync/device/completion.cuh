// Completions: any thread may read them; a lock admits one thread at a time.
#ifndef GDSYNC_DEVICE_COMPLETION_CUH
#define GDSYNC_DEVICE_COMPLETION_CUH

#include "atomics.cuh"
#include "queue.cuh"

namespace gdsync {

// The first failure of the queue pair, which stays; 0 if there is none: GDSYNC_DEVICE_ERROR_*, with the card's syndrome in the low
// 8 bits (mlx5dv.h, `MLX5_CQE_SYNDROME_*`) and the vendor's in the next 8. After a failure the card flushes all outstanding work.
GDSYNC_DEVICE u64 error(const gdsync_device_qp &qp) { return detail::load_relaxed_gpu(&detail::state_of(qp)->error); }

// The card's syndrome of the first failure, 0 if no request has failed.
GDSYNC_DEVICE u32 syndrome(const gdsync_device_qp &qp) {
    const u64 found = error(qp);
    return (found & GDSYNC_DEVICE_ERROR_WORK) != 0 ? (u32)found & 0xff : 0;
}

namespace detail {

// `op_own`, the entry's last byte: the opcode, and in the lowest bit the owner, which changes with each lap
// (mlx5dv.h, `mlx5_cqe64`).
static const u32 CQE_REQUESTER = 0x0;
static const u32 CQE_REQUESTER_ERROR = 0xd;
static const u32 CQE_RESPONDER_ERROR = 0xe;
static const u32 CQE_INVALID = 0xf;
// Entries that are read under one hold of the lock, so that other threads get their turn.
static const u32 POLL_AT_MOST = 64;

GDSYNC_DEVICE void fail(gdsync_device_state *state, u64 error) {
    // The first error stays.
    exchange_relaxed_gpu(&state->error, 0, error);
}

// A completion queue, by value: a function that is not inlined and takes the queue pair's description by address
// would force the description into memory.
struct completions {
    u8 *ring;
    u32 *record;
    gdsync_device_state *state;
    u32 mask;
};

// Entries that are read together, as each read takes a round trip to the ring, which may be in host memory.
static const u32 LOOK_AT_ONCE = 8;

GDSYNC_DEVICE const u32 *last_word(const completions &queue, u64 index) {
    return (const u32 *)(queue.ring + (index & queue.mask) * 64 + 60);
}

// True if the last 4 bytes of an entry are those of a completion that the card has written in this lap.
GDSYNC_DEVICE bool is_written(const completions &queue, u64 index, u32 word) {
    // The card writes owner 0 in the first lap, 1 in the second, and so on. An entry of the previous lap has the
    // other owner bit, and one of two laps before has been overwritten.
    const u32 owner = (index & ((u64)queue.mask + 1)) != 0 ? 1 : 0;
    return (word >> 24 & 1) == owner && word >> 28 != CQE_INVALID;
}

// Processes an entry: `done` becomes the number of completed blocks. Returns false if the entry is invalid.
GDSYNC_DEVICE bool take_entry(const completions &queue, u64 index, u32 word, u64 &done) {
    gdsync_device_state *state = queue.state;
    const u32 opcode = word >> 28;
    // Bytes 60 and 61, big endian: the block of the request, which also retires all before it.
    const u16 counter = (u16)(big_endian(word) >> 16);
    const u16 advance = (u16)(counter + 1 - (u16)done);
    // The request was reserved before the card was rung for it, and the card was rung before it wrote the entry (acquire).
    if (advance == 0 || advance > load_relaxed_gpu(&state->reserved) - done) {
        return false;
    }
    if (opcode == CQE_REQUESTER_ERROR || opcode == CQE_RESPONDER_ERROR) {
        // Bytes 54 and 55: the vendor's syndrome, the syndrome. Acquire: see `reap` on the consumer record.
        const u8 *entry = queue.ring + (index & queue.mask) * 64;
        const u32 syndromes = load_acquire_system((const u32 *)(entry + 52));
        fail(state, GDSYNC_DEVICE_ERROR_WORK | (syndromes >> 16 & 0xff) << 8 | syndromes >> 24);
    } else if (opcode != CQE_REQUESTER) {
        return false;
    }
    done += advance;
    return true;
}

// Reads the entries that the card has written, unless another thread does.
GDSYNC_DEVICE_RARE void reap(completions queue) {
    gdsync_device_state *state = queue.state;
    // Acquire: the indices are those of the last holder.
    if (!try_lock(&state->poll_lock)) {
        return;
    }
    const u64 first = load_relaxed_gpu(&state->consumed);
    u64 index = first;
    u64 done = load_relaxed_gpu(&state->completed);
    bool sound = true;
    GDSYNC_DEVICE_LOOP
    while (sound && index - first < POLL_AT_MOST) {
        u32 words[LOOK_AT_ONCE];
        // Acquire: the card's writes before this word (the rest of the entry, and before it the data of a read) are
        // visible after it.
        words[0] = load_acquire_system(last_word(queue, index));
        if (!is_written(queue, index, words[0])) {
            break;
        }
        for (u32 i = 1; i < LOOK_AT_ONCE; i++) {
            words[i] = load_relaxed_system(last_word(queue, index + i));
        }
        u32 count = 1;
        while (count < LOOK_AT_ONCE && is_written(queue, index + count, words[count])) {
            count++;
        }
        if (count > 1) {
            // Acquire: the card writes entries in order, so its writes before the last one precede all.
            load_acquire_system(last_word(queue, index + count - 1));
        }
        for (u32 i = 0; i < count && sound; i++) {
            sound = take_entry(queue, index, words[i], done);
            index += sound ? 1 : 0;
        }
    }
    if (!sound) {
        fail(state, GDSYNC_DEVICE_ERROR_COMPLETION);
    }
    if (index != first) {
        // Returns the entries to the card, before `completed` lets any thread post requests that might need their places. Acquire
        // loads read the entries and order this store after them, or their values decided that there is this store.
        store_behind_acquires_system(queue.record, big_endian((u32)index & 0xffffff));
        store_relaxed_gpu(&state->consumed, index);
        // Release: a thread that sees the count sees the error, and may overwrite the blocks, which the card read
        // before it wrote the entries.
        store_release_gpu(&state->completed, done);
    }
    unlock(&state->poll_lock);
}

GDSYNC_DEVICE completions completions_of(const gdsync_device_qp &qp) {
    return completions{(u8 *)qp.completion_ring, (u32 *)qp.completion_record, state_of(qp), qp.completion_mask};
}

// Waits until `ticket` blocks have completed.
GDSYNC_DEVICE_RARE status wait_completed(completions queue, u64 ticket, u64 timeout_ns) {
    Waited waited;
    for (;;) {
        // Acquire: the caller sees the card's writes for these requests, whichever thread has read the entries.
        const bool done = load_acquire_gpu(&queue.state->completed) >= ticket;
        if (load_relaxed_gpu(&queue.state->error) != 0) {
            return status::failed;
        }
        if (done) {
            return status::ok;
        }
        reap(queue);
        if (load_relaxed_gpu(&queue.state->completed) < ticket && waited.longer_than(timeout_ns)) {
            return status::timed_out;
        }
    }
}

} // namespace detail
} // namespace gdsync

#endif
