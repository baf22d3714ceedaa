// How requests get to the card: blocks are reserved, written in parallel, published in order, and the card is rung by one at a time.
#ifndef GDSYNC_DEVICE_POST_CUH
#define GDSYNC_DEVICE_POST_CUH

#include "completion.cuh"
#include "group.cuh"
#include "wqe.cuh"

namespace gdsync {
namespace detail {

// Blocks whose requests are written.
GDSYNC_DEVICE u64 published(u64 ready) { return ready & ~GDSYNC_DEVICE_RINGING; }

// The same, and what was written to them is seen.
GDSYNC_DEVICE u64 load_published(const gdsync_device_state *state) { return published(load_acquire_gpu(&state->ready)); }

// What ringing takes, by value: see `completions`.
struct doorbells {
    gdsync_device_state *state;
    const u8 *ring;
    u32 *record;
    u64 *reg;
    u64 stall_ns;
    u32 mask;
    u32 flags;
};

GDSYNC_DEVICE doorbells doorbells_of(const gdsync_device_qp &qp) {
    return doorbells{state_of(qp), (const u8 *)qp.send_ring, (u32 *)qp.send_record, (u64 *)qp.doorbell,
                     qp.stall_ns,  qp.send_mask,             qp.flags};
}

// Tells the card of the blocks before `end`, of which the last begins with `value`, and lets the next one ring. The caller has set
// GDSYNC_DEVICE_RINGING (by an acquire: so neither record nor register ever goes backwards), `end` lies behind what was posted, and
// whatever it has not written itself of the blocks, it has seen before its last `release_to_system`.
GDSYNC_DEVICE void ring_card(const doorbells &card, u64 end, u64 value) {
    if ((card.flags & GDSYNC_DEVICE_QP_MAILBOX) != 0) {
        // Whoever forwards the mailbox sees the blocks, and orders them before the record and the register.
        store_behind_release_system(card.reg, end);
    } else {
        // The card sees the blocks before it sees the record.
        store_behind_release_system(card.record, big_endian((u32)end & 0xffff));
        // Release: the record before the register, whose store makes the card look at the record.
        store_release_system(card.reg, value);
    }
    // Behind a release that covers the blocks: see `publish`.
    store_relaxed_gpu(&card.state->posted, end);
    // Release: record and register before those of the next one.
    clear_release_gpu(&card.state->ready, GDSYNC_DEVICE_RINGING);
}

// Sees to it that the card is told of the blocks before `end`, which are published: by this thread, or by one that rings already.
// Whoever gets to ring does so for all that is published by then. `value` is what the last of them begins with, 0 where that is to be
// read: which may be from far.
GDSYNC_DEVICE_RARE status ring(doorbells card, u64 end, u64 value) {
    gdsync_device_state *state = card.state;
    Waited waited;
    for (;;) {
        const u64 ready = load_relaxed_gpu(&state->ready);
        if (load_relaxed_gpu(&state->posted) >= end) {
            return status::ok;
        }
        // Acquire: `posted` is what the last one left that rang, and the blocks are seen.
        if (ready == published(ready) && exchange_acquire_gpu(&state->ready, ready, ready | GDSYNC_DEVICE_RINGING) == ready) {
            if (load_relaxed_gpu(&state->posted) < ready) {
                // Published and not posted: nobody overwrites the block.
                const u64 *block = (const u64 *)(card.ring + ((ready - 1) & card.mask) * 64);
                const u64 last = ready == end && value != 0 ? value : load_relaxed_gpu(block);
                release_to_system();
                ring_card(card, ready, last);
            } else {
                clear_release_gpu(&state->ready, GDSYNC_DEVICE_RINGING);
            }
            // `end` was published before this call: it is among them.
            return status::ok;
        }
        if (waited.longer_than(card.stall_ns)) {
            fail(state, GDSYNC_DEVICE_ERROR_STALLED);
            return status::failed;
        }
    }
}

// Says that the blocks from `first` to `end` are written, once all before them are; and with `ring_now` that the card is told of them:
// the same exchange that publishes them gets the doorbell, where it is free. `value` is what the last of them begins with;
// `posted` was read by this thread before.
GDSYNC_DEVICE status publish(const gdsync_device_qp &qp, u64 first, u64 end, bool ring_now, u64 value, u64 posted) {
    gdsync_device_state *state = state_of(qp);
    // Release: the blocks are before the exchange below, for threads that publish or ring behind it; and where this thread
    // rings, for the card, and with them what it reads on their account. Acquire, of `posted`: see below.
    if (ring_now) {
        acquire_and_release_to_system();
    } else {
        release_to_gpu();
    }
    Waited waited;
    u64 expected = first;
    for (;;) {
        const u64 desired = end | (ring_now ? GDSYNC_DEVICE_RINGING : expected & GDSYNC_DEVICE_RINGING);
        // Acquire: what was published before is among what the next release orders.
        u64 found = exchange_behind_release_gpu(&state->ready, expected, desired);
        if (found == expected) {
            break;
        }
        // Mostly another one has begun or ended to ring. Else those before this thread are still writing.
        while (published(found) != first) {
            if (waited.longer_than(qp.stall_ns)) {
                // A thread was stopped between reservation and publication: the queue cannot go on.
                fail(state, GDSYNC_DEVICE_ERROR_STALLED);
                return status::failed;
            }
            found = load_relaxed_gpu(&state->ready);
        }
        expected = found;
    }
    if (!ring_now) {
        return status::ok;
    }
    if (expected != first) {
        // Who rings may have looked before these blocks were published.
        return ring(doorbells_of(qp), end, value);
    }
    // Blocks of others: where the card has been told of all of them, whoever told it has ordered them before `posted`, which this
    // thread has acquired before its own release. Else they are ordered here.
    if (posted < first) {
        release_to_system();
    }
    ring_card(doorbells_of(qp), end, value);
    return status::ok;
}

// The same, for blocks that the card has mostly been told of already.
GDSYNC_DEVICE status ring_what_waits(const gdsync_device_qp &qp, u64 end) {
    return load_relaxed_gpu(&state_of(qp)->posted) >= end ? status::ok : ring(doorbells_of(qp), end, 0);
}

// Takes `count` blocks from `first` on, waiting for room no longer than `timeout_ns`. `posted`: blocks that the card was told of.
GDSYNC_DEVICE status reserve(const gdsync_device_qp &qp, u32 count, u64 timeout_ns, u64 &first, u64 &posted) {
    gdsync_device_state *state = state_of(qp);
    if (count > qp.limit) {
        return status::no_room;
    }
    // Others that are faster, again and again, are not waited for less than a thread may stand still in the middle of a call.
    const u64 patience = timeout_ns > qp.stall_ns ? timeout_ns : qp.stall_ns;
    Waited waited;
    bool looked = false;
    for (;;) {
        // Four loads at a time: each takes as long as the way to the L2 cache, or to the host.
        const u64 failure = error(qp);
        first = load_relaxed_gpu(&state->reserved);
        posted = load_relaxed_gpu(&state->posted);
        // Acquire: the blocks are written only after the card has read what stood in them (see `reap`).
        const u64 completed = load_acquire_gpu(&state->completed);
        if (failure != 0) {
            return status::failed;
        }
        // Signed: where others have reserved, posted and completed since `first` was read, there is room, but not for `first`. Where
        // the exchange succeeds nobody has, and what has completed stays so.
        while ((long long)(first + count - completed) <= (long long)qp.limit) {
            // Relaxed: publication orders what is written to the blocks.
            const u64 found = exchange_relaxed_gpu(&state->reserved, first, first + count);
            if (found == first) {
                return status::ok;
            }
            // Others were faster. Nothing is reserved, so it may be given up.
            if (waited.longer_than(patience)) {
                return status::no_room;
            }
            first = found;
        }
        if (looked && waited.longer_than(timeout_ns)) {
            return status::no_room;
        }
        // What fills the queue may be waiting for its doorbell: it was posted with `more`, and nothing can be posted behind it.
        ring_what_waits(qp, load_published(state));
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
    u64 first = 0, posted = 0;
    if (group.leads()) {
        result = reserve(qp, count, timeout_ns, first, posted);
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
        result = publish(qp, first, first + count, ring_now, value, posted);
    }
    group.share(result);
    if (ticket != nullptr) {
        *ticket = first + count;
    }
    return result;
}

} // namespace detail
} // namespace gdsync

#endif
