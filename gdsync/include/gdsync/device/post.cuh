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

// The same, for blocks that the card has mostly been told of already.
GDSYNC_DEVICE status ring_what_waits(const doorbells &card, u64 end) {
    return load_relaxed_gpu(&card.state->posted) >= end ? status::ok : ring(card, end, 0);
}

// Says that the blocks from `first` to `end` are written, once all before them are, and with `ring_now` sees to it that the card is
// told of them; behind a release that covers the blocks. `found` is what `ready` was.
GDSYNC_DEVICE_RARE status publish_in_turn(doorbells card, u64 first, u64 end, bool ring_now, u64 value, u64 found) {
    gdsync_device_state *state = card.state;
    Waited waited;
    bool is_published = false, is_over = false;
    // One loop, in which the turns of all are alike: where threads of a warp wait for each other in loops inside of it, those whose turn has
    // come may get theirs late.
    while (!is_published && !is_over) {
        if (published(found) == first) {
            // Mostly another one has begun or ended to ring. Acquire: what was published before is among what the next release orders.
            const u64 expected = found;
            found = exchange_behind_release_gpu(&state->ready, expected, end | (expected & GDSYNC_DEVICE_RINGING));
            is_published = found == expected;
        } else {
            // Those before this thread are still writing.
            is_over = waited.longer_than(card.stall_ns);
            found = load_relaxed_gpu(&state->ready);
        }
    }
    if (!is_published) {
        // A thread was stopped between reservation and publication: the queue cannot go on.
        fail(state, GDSYNC_DEVICE_ERROR_STALLED);
        return status::failed;
    }
    // Who rings may have looked before these blocks were published.
    return ring_now ? ring(card, end, value) : status::ok;
}

// The same, without anything that the blocks are behind.
GDSYNC_DEVICE status publish(const gdsync_device_qp &qp, u64 first, u64 end, bool ring_now, u64 value) {
    gdsync_device_state *state = state_of(qp);
    if (!ring_now) {
        // Release: the blocks are before the exchange, for threads that publish or ring behind it.
        release_to_gpu();
        // Acquire: as in `publish_in_turn`.
        const u64 found = exchange_behind_release_gpu(&state->ready, first, end);
        return found == first ? status::ok : publish_in_turn(doorbells_of(qp), first, end, false, value, found);
    }
    // Where all blocks before are published and nobody rings, this thread does, and `ready` is its own until it publishes: no other
    // publishes from `first` on, and no other rings. It gets the doorbell before the fence, so that both take their time together.
    u64 found = exchange_before_acquire_gpu(&state->ready, first, first | GDSYNC_DEVICE_RINGING);
    // Release, of the blocks: to the card, and to threads that publish or ring behind what follows. Acquire, of the exchange: the card sees
    // the blocks of others, too, and record and register do not go backwards.
    acquire_and_release_to_system();
    found = not_before_here(found);
    if (found != first) {
        return publish_in_turn(doorbells_of(qp), first, end, true, value, found);
    }
    store_behind_release_gpu(&state->ready, end | GDSYNC_DEVICE_RINGING);
    ring_card(doorbells_of(qp), end, value);
    return status::ok;
}

// How an attempt to take blocks has ended: with the first of them, or why not.
enum class attempt : int { taken, failed, full, outrun };

// Takes `count` blocks if it can at once.
GDSYNC_DEVICE attempt take(gdsync_device_state *state, u32 count, u32 limit, u64 &first) {
    // Three loads at a time: each takes as long as the way to the L2 cache, or to the host.
    const u64 failure = load_relaxed_gpu(&state->error);
    first = load_relaxed_gpu(&state->reserved);
    // Acquire: the blocks are written only after the card has read what stood in them (see `reap`).
    const u64 completed = load_acquire_gpu(&state->completed);
    if (failure != 0) {
        return attempt::failed;
    }
    // Signed: where others have reserved, posted and completed since `first` was read, there is room, but not for these blocks. Where
    // the exchange succeeds nobody has, and what has completed stays so.
    if ((long long)(first + count - completed) > (long long)limit) {
        return attempt::full;
    }
    // Relaxed: publication orders what is written to the blocks.
    return exchange_relaxed_gpu(&state->reserved, first, first + count) == first ? attempt::taken : attempt::outrun;
}

// Sees to it that a full queue gets room: what fills it may be waiting for its doorbell (it was posted with `more`, and nothing can be
// posted behind it), and completions are to be read.
GDSYNC_DEVICE_RARE void make_room(doorbells card, completions queue) {
    ring_what_waits(card, load_published(card.state));
    reap(queue);
}

// How long a call goes on after attempts that took nothing.
class Patience {
  public:
    GDSYNC_DEVICE Patience(u64 timeout_ns, u64 stall_ns) : timeout_ns_(timeout_ns), stall_ns_(stall_ns), looked_(false) {}

    // Whether to try again. A full queue is looked at once more at least.
    GDSYNC_DEVICE bool lasts(const gdsync_device_qp &qp, attempt last) {
        if (last == attempt::outrun) {
            // Others that are faster, again and again, are not waited for less than a thread may stand still in the middle of a call.
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

// One call of a group: every thread of it has one request, of `BLOCKS` blocks, which `build(index, signaled)` writes. It
// returns what the last of them begins with.
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
    // Who has taken blocks posts them inside the loop: threads of a warp that leave a loop may wait behind it for those that do not, and
    // these would wait for blocks that are not posted.
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
            // The writes of all are before the release of the leader, which publishes for them.
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
