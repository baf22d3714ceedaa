// How requests get to the card: blocks are reserved, written in parallel, published in order, and the card is rung by one at a time.
#ifndef GDSYNC_DEVICE_POST_CUH
#define GDSYNC_DEVICE_POST_CUH

#include "completion.cuh"
#include "group.cuh"
#include "wqe.cuh"

namespace gdsync {
namespace detail {

// Says that the blocks from `first` to `end` are written, once all before them are.
GDSYNC_DEVICE status publish(const gdsync_device_qp &qp, u64 first, u64 end) {
    gdsync_device_state *state = state_of(qp);
    Waited waited;
    for (;;) {
        // Acquire: the writes of those before are among what the store below releases.
        if (load_acquire_gpu(&state->ready) == first) {
            // Inside the loop: threads of a warp that wait for this store may be what a thread that has left the loop is made to
            // wait for.
            store_release_gpu(&state->ready, end);
            return status::ok;
        }
        if (waited.longer_than(qp.stall_ns)) {
            // A thread was stopped between reservation and publication: the queue cannot go on.
            fail(state, GDSYNC_DEVICE_ERROR_STALLED);
            return status::failed;
        }
    }
}

// The first 8 bytes of the control segment of block `index`, which was published and not posted: nobody overwrites it.
GDSYNC_DEVICE u64 doorbell_of(const gdsync_device_qp &qp, u64 index) {
    return load_relaxed_gpu((const u64 *)block_of(qp, index));
}

// Tells the card of the blocks before `end`, of which the last begins with `value`. The caller holds the lock, and `end` lies behind
// what was posted.
GDSYNC_DEVICE void ring_card(const gdsync_device_qp &qp, u64 end, u64 value) {
    if ((qp.flags & GDSYNC_DEVICE_QP_MAILBOX) != 0) {
        // Release: whoever forwards the mailbox sees the blocks, and orders them before the record and the register.
        store_release_system((u64 *)qp.doorbell, end);
        return;
    }
    // Release, to the system: the card sees the blocks (this thread's, and by the acquire of `ready` those of all others) before it
    // sees the record.
    store_release_system((u32 *)qp.send_record, big_endian((u32)end & 0xffff));
    // Release: the record before the register, whose store makes the card look at the record.
    store_release_system((u64 *)qp.doorbell, value);
}

// Sees to it that the card is told of the blocks before `end`, which are published: by this thread, or by one that rings already.
// Whoever gets the lock rings for all that is published by then. `value` is what the last of them begins with, 0 where that is to be
// read: which may be from far.
GDSYNC_DEVICE status ring(const gdsync_device_qp &qp, u64 end, u64 value) {
    gdsync_device_state *state = state_of(qp);
    Waited waited;
    for (;;) {
        // Acquire: `posted` is what the last holder left; so neither record nor register ever goes backwards. Without a look
        // first: mostly the lock is free.
        if (exchange_acquire_gpu(&state->doorbell_lock, 0, 1)) {
            // Two loads at a time.
            const u64 posted = load_relaxed_gpu(&state->posted);
            const u64 ready = load_acquire_gpu(&state->ready);
            if (ready > posted) {
                ring_card(qp, ready, ready == end && value != 0 ? value : doorbell_of(qp, ready - 1));
                store_relaxed_gpu(&state->posted, ready);
            }
            unlock(&state->doorbell_lock);
            // `end` was published before this call: it is among them.
            return status::ok;
        }
        if (load_relaxed_gpu(&state->posted) >= end) {
            return status::ok;
        }
        if (waited.longer_than(qp.stall_ns)) {
            fail(state, GDSYNC_DEVICE_ERROR_STALLED);
            return status::failed;
        }
    }
}

// The same, for blocks that the card has mostly been told of already.
GDSYNC_DEVICE status ring_what_waits(const gdsync_device_qp &qp, u64 end) {
    return load_relaxed_gpu(&state_of(qp)->posted) >= end ? status::ok : ring(qp, end, 0);
}

// Takes `count` blocks from `first` on, waiting for room no longer than `timeout_ns`.
GDSYNC_DEVICE status reserve(const gdsync_device_qp &qp, u32 count, u64 timeout_ns, u64 &first) {
    gdsync_device_state *state = state_of(qp);
    if (count > qp.limit) {
        return status::no_room;
    }
    Waited for_room, for_others;
    bool looked = false;
    for (;;) {
        // Three loads at a time: each takes as long as the way to the L2 cache, or to the host.
        const u64 failure = error(qp);
        first = load_relaxed_gpu(&state->reserved);
        // Acquire: the blocks are written only after the card has read what stood in them (see `reap`).
        const u64 completed = load_acquire_gpu(&state->completed);
        if (failure != 0) {
            return status::failed;
        }
        // Signed: where others have reserved, posted and completed since `first` was read, there is room, but not for `first`. Where
        // the exchange succeeds nobody has, and what has completed stays so.
        if ((long long)(first + count - completed) <= (long long)qp.limit) {
            // Relaxed: publication orders what is written to the blocks.
            if (exchange_relaxed_gpu(&state->reserved, first, first + count)) {
                return status::ok;
            }
            // Others were faster. Nothing is reserved, so it may be given up.
            if (for_others.longer_than(qp.stall_ns)) {
                return status::no_room;
            }
            continue;
        }
        if (looked && for_room.longer_than(timeout_ns)) {
            return status::no_room;
        }
        // What fills the queue may be waiting for its doorbell: it was posted with `more`, and nothing can be posted behind it.
        ring_what_waits(qp, load_acquire_gpu(&state->ready));
        reap(completions_of(qp));
        looked = true;
    }
}

// One call of a group: every thread of it has one request, of `BLOCKS` blocks, which `build(index, signaled)` writes. It
// returns what the last of them begins with.
template <scope S, u32 BLOCKS, class Build>
GDSYNC_DEVICE status post(const gdsync_device_qp &qp, bool valid, bool ring_now, u64 timeout_ns, u64 *ticket, const Build &build) {
    const Group<S> group;
    if (group.any(!valid || qp.version != GDSYNC_DEVICE_QP_VERSION)) {
        return status::invalid;
    }
    const u32 count = group.size() * BLOCKS;
    status result = status::ok;
    u64 first = 0;
    if (group.leads()) {
        result = reserve(qp, count, timeout_ns, first);
    }
    group.share(result, first);
    if (result != status::ok) {
        return result;
    }
    // Only the last request of a call has a completion: it retires all before it.
    const u64 value = build(first + group.rank() * BLOCKS, group.leads());
    // The writes of all are before the release of the leader, which publishes for them.
    group.sync();
    if (group.leads()) {
        result = publish(qp, first, first + count);
        if (result == status::ok && ring_now) {
            result = ring(qp, first + count, value);
        }
    }
    u64 end = first + count;
    group.share(result, end);
    if (ticket != nullptr) {
        *ticket = end;
    }
    return result;
}

} // namespace detail
} // namespace gdsync

#endif
