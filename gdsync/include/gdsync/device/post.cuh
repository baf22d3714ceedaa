// Posting: threads reserve blocks, write them in parallel, publish them in order, and one thread at a time rings.
#ifndef GDSYNC_DEVICE_POST_CUH
#define GDSYNC_DEVICE_POST_CUH

#include "completion.cuh"
#include "group.cuh"
#include "wqe.cuh"

namespace gdsync {
namespace detail {

// The number of written blocks, without a gap.
GDSYNC_DEVICE u64 published(u64 ready) { return ready & ~GDSYNC_DEVICE_RINGING; }

// The same, by an acquire: the caller sees the writes to them.
GDSYNC_DEVICE u64 load_published(const gdsync_device_state *state) { return published(load_acquire_gpu(&state->ready)); }

// The fields that ringing needs, by value: see `completions`.
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

// Rings the card for the blocks before `end`, of which the last begins with `value`, and lets the next thread ring. The caller has
// set GDSYNC_DEVICE_RINGING (by an acquire: neither record nor register ever goes backwards), `end` is greater than `posted`, and
// the caller has written the blocks itself or seen them written before its last `release_to_system`.
GDSYNC_DEVICE void ring_card(const doorbells &card, u64 end, u64 value) {
    if ((card.flags & GDSYNC_DEVICE_QP_MAILBOX) != 0) {
        // The CPU thread that forwards the mailbox sees the blocks, and orders them before the record and the register.
        store_behind_release_system(card.reg, end);
    } else {
        // The card sees the blocks before it sees the record.
        store_behind_release_system(card.record, big_endian((u32)end & 0xffff));
        // Release: the record before the register, whose store makes the card read the record.
        store_release_system(card.reg, value);
    }
    store_relaxed_gpu(&card.state->posted, end);
    // Release: record and register before those of the next thread.
    clear_release_gpu(&card.state->ready, GDSYNC_DEVICE_RINGING);
}

// Makes sure that the card is rung for the blocks before `end`, which are published: by this thread, or by one that
// is already ringing. The thread that rings does so for all blocks published by then. `value` is the beginning of the
// last of them; 0: read it from the ring, which may be in host memory.
GDSYNC_DEVICE_RARE status ring(doorbells card, u64 end, u64 value) {
    gdsync_device_state *state = card.state;
    Waited waited;
    for (;;) {
        const u64 ready = load_relaxed_gpu(&state->ready);
        if (load_relaxed_gpu(&state->posted) >= end) {
            return status::ok;
        }
        // Acquire: this thread sees `posted` as the last ringing thread left it, and the blocks.
        if (ready == published(ready) && exchange_acquire_gpu(&state->ready, ready, ready | GDSYNC_DEVICE_RINGING) == ready) {
            if (load_relaxed_gpu(&state->posted) < ready) {
                // Published and not posted: no thread overwrites the block.
                const u64 *block = (const u64 *)(card.ring + ((ready - 1) & card.mask) * 64);
                const u64 last = ready == end && value != 0 ? value : load_relaxed_gpu(block);
                release_to_system();
                ring_card(card, ready, last);
            } else {
                clear_release_gpu(&state->ready, GDSYNC_DEVICE_RINGING);
            }
            // `end` was published before this call, so this covers it.
            return status::ok;
        }
        if (waited.longer_than(card.stall_ns)) {
            fail(state, GDSYNC_DEVICE_ERROR_STALLED);
            return status::failed;
        }
    }
}

// The same, for blocks for which the card has usually been rung already.
GDSYNC_DEVICE status ring_what_waits(const doorbells &card, u64 end) {
    return load_relaxed_gpu(&card.state->posted) >= end ? status::ok : ring(card, end, 0);
}

// Publishes the blocks from `first` to `end` once all before them are published, and with `ring_now` makes sure that
// the card is rung for them. The caller has released the blocks. `found` is the value that it has seen in `ready`.
GDSYNC_DEVICE_RARE status publish_in_turn(doorbells card, u64 first, u64 end, bool ring_now, u64 value, u64 found) {
    gdsync_device_state *state = card.state;
    Waited waited;
    bool is_published = false, is_over = false;
    // One loop with the same steps for all threads: if threads of a warp waited for each other in nested loops, the
    // thread whose turn it is might run late.
    while (!is_published && !is_over) {
        if (published(found) == first) {
            // Usually another thread has begun or ended ringing. Acquire: the next release also orders the blocks published before.
            const u64 expected = found;
            found = exchange_behind_release_gpu(&state->ready, expected, end | (expected & GDSYNC_DEVICE_RINGING));
            is_published = found == expected;
        } else {
            // Threads with earlier blocks are still writing.
            is_over = waited.longer_than(card.stall_ns);
            found = load_relaxed_gpu(&state->ready);
        }
    }
    if (!is_published) {
        // A thread was stopped between reservation and publication: the queue cannot continue.
        fail(state, GDSYNC_DEVICE_ERROR_STALLED);
        return status::failed;
    }
    // The ringing thread may have read `ready` before these blocks were published.
    return ring_now ? ring(card, end, value) : status::ok;
}

// Publishes the blocks, and with `ring_now` rings for them. Fast path: all blocks before are published.
GDSYNC_DEVICE status publish(const gdsync_device_qp &qp, u64 first, u64 end, bool ring_now, u64 value) {
    gdsync_device_state *state = state_of(qp);
    if (!ring_now) {
        // Release: the blocks are before the exchange, for threads that publish or ring after it.
        release_to_gpu();
        // Acquire: as in `publish_in_turn`.
        const u64 found = exchange_behind_release_gpu(&state->ready, first, end);
        return found == first ? status::ok : publish_in_turn(doorbells_of(qp), first, end, false, value, found);
    }
    // If all blocks before are published and no thread rings, this one does, and owns `ready` until it publishes: no other thread
    // publishes from `first` on, and no other rings. It takes the doorbell before the fence, so that both latencies overlap.
    u64 found = exchange_before_acquire_gpu(&state->ready, first, first | GDSYNC_DEVICE_RINGING);
    // Release of the blocks: to the card, and to threads that publish or ring later. Acquire of the exchange: the
    // card sees the blocks of other threads, too, and record and register do not go backwards.
    acquire_and_release_to_system();
    found = not_before_here(found);
    if (found != first) {
        return publish_in_turn(doorbells_of(qp), first, end, true, value, found);
    }
    store_behind_release_gpu(&state->ready, end | GDSYNC_DEVICE_RINGING);
    ring_card(doorbells_of(qp), end, value);
    return status::ok;
}

// The result of an attempt to take blocks.
enum class attempt : int { taken, failed, full, outrun };

// Takes `count` blocks if it can at once.
GDSYNC_DEVICE attempt take(gdsync_device_state *state, u32 count, u32 limit, u64 &first) {
    // Three loads at a time: each takes a round trip to the L2 cache, or to the host.
    const u64 failure = load_relaxed_gpu(&state->error);
    first = load_relaxed_gpu(&state->reserved);
    // Acquire: the blocks are written only after the card has read their old content (see `reap`).
    const u64 completed = load_acquire_gpu(&state->completed);
    if (failure != 0) {
        return attempt::failed;
    }
    // Signed: other threads may have reserved, posted and completed since `first` was read; then there is room, but
    // not for these blocks. If the exchange succeeds, no thread has, and `completed` never decreases.
    if ((long long)(first + count - completed) > (long long)limit) {
        return attempt::full;
    }
    // Relaxed: publication orders the writes to the blocks.
    return exchange_relaxed_gpu(&state->reserved, first, first + count) == first ? attempt::taken : attempt::outrun;
}

// Makes room in a full queue: rings for requests that were posted with `more` (no later post can do so while the
// queue is full), and reads completions.
GDSYNC_DEVICE_RARE void make_room(doorbells card, completions queue) {
    ring_what_waits(card, load_published(card.state));
    reap(queue);
}

// How long a call retries after attempts that took nothing.
class Patience {
  public:
    GDSYNC_DEVICE Patience(u64 timeout_ns, u64 stall_ns) : timeout_ns_(timeout_ns), stall_ns_(stall_ns), looked_(false) {}

    // True if the call is to try again. A full queue is checked at least once more.
    GDSYNC_DEVICE bool lasts(const gdsync_device_qp &qp, attempt last) {
        if (last == attempt::outrun) {
            // Faster threads may win repeatedly: retry for at least as long as a thread may pause in the middle of a call.
            return !waited_.longer_than(timeout_ns_ > stall_ns_ ? timeout_ns_ : stall_ns_);
        }
        if (last != attempt::full || (looked_ && waited_.longer_than(timeout_ns_))) {
            return false;
        }
        looked_ = true;
        make_room(doorbells_of(qp), completions_of(qp));
        return true;
    }

  private:
    Waited waited_;
    u64 timeout_ns_;
    u64 stall_ns_;
    bool looked_;
};

// One call of a group: every thread of it has one request of `BLOCKS` blocks, which `build(index, signaled)` writes.
// `build` returns the beginning of the last block.
template <scope S, u32 BLOCKS, class Build>
GDSYNC_DEVICE status post(const Group<S> &group, const gdsync_device_qp &qp, bool valid, bool ring_now, u64 timeout_ns, u64 *ticket,
                          const Build &build) {
    if (group.any(!valid || qp.version != GDSYNC_DEVICE_QP_VERSION)) {
        return status::invalid;
    }
    const u32 count = group.size() * BLOCKS;
    if (count > qp.limit) {
        return status::no_room;
    }
    Patience patience(timeout_ns, qp.stall_ns);
    status result = status::no_room;
    bool again = true;
    // A thread that has taken blocks posts them inside the loop: threads of a warp that leave a loop may wait after
    // it for those that do not, which would wait for blocks that are not posted.
    GDSYNC_DEVICE_LOOP
    while (again) {
        attempt ended = attempt::failed;
        u64 first = 0;
        if (group.leads()) {
            ended = take(state_of(qp), count, qp.limit, first);
        }
        group.share(ended, first);
        if (ended == attempt::taken) {
            // Only the last request of a call has a completion: it retires all before it.
            const u64 value = build(first + group.rank() * BLOCKS, group.leads());
            // All writes of the group are before the release of the leader, which publishes for all.
            group.sync();
            result = status::ok;
            if (group.leads()) {
                result = publish(qp, first, first + count, ring_now, value);
            }
            group.share(result);
            if (ticket != nullptr) {
                *ticket = first + count;
            }
            again = false;
        } else {
            result = ended == attempt::failed ? status::failed : status::no_room;
            bool lasts = false;
            if (group.leads()) {
                lasts = patience.lasts(qp, ended);
            }
            group.share(lasts);
            again = lasts;
        }
    }
    return result;
}

} // namespace detail
} // namespace gdsync

#endif
