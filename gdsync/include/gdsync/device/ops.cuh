// The calls: see device_verbs.cuh.
#ifndef GDSYNC_DEVICE_OPS_CUH
#define GDSYNC_DEVICE_OPS_CUH

#include "post.cuh"

namespace gdsync {

// Memory of the remote side: its address there, and the key from the remote side.
struct remote_memory {
    u64 address;
    u32 rkey;
};

// Memory of this side: its address as the card knows it, and its key.
struct local_memory {
    u64 address;
    u32 lkey;
};

// Options of a post.
struct post_options {
    // True if the post rings the card. If not, the next post that does, or `ring`, also rings for this request.
    bool ring_now;
    // How long to wait for room, in nanoseconds; 0 reads completions once. A thread that loses races to others tries
    // for at least `stall_ns`.
    u64 timeout_ns;
    // The place for the ticket for `wait`; may be null.
    u64 *ticket;

    GDSYNC_DEVICE post_options() : ring_now(true), timeout_ns(0), ticket(nullptr) {}

    GDSYNC_DEVICE post_options &more() {
        ring_now = false;
        return *this;
    }

    GDSYNC_DEVICE post_options &timeout(u64 nanoseconds) {
        timeout_ns = nanoseconds;
        return *this;
    }

    GDSYNC_DEVICE post_options &ticket_to(u64 *at) {
        ticket = at;
        return *this;
    }
};

namespace detail {

// One call whose threads have `BLOCKS` blocks each.
template <scope S, u32 BLOCKS, class Build>
GDSYNC_DEVICE status post_blocks(const gdsync_device_qp &qp, bool valid, const post_options &options, const Build &build) {
    return post<S, BLOCKS>(Group<S>(), qp, valid, options.ring_now, options.timeout_ns, options.ticket, build);
}

GDSYNC_DEVICE u64 write_put(const gdsync_device_qp &qp, u64 index, remote_memory to, local_memory from, u32 bytes, bool signaled) {
    Block block(qp, index);
    block.put_remote(to.address, to.rkey);
    block.put_data(from.address, from.lkey, bytes);
    return block.finish(OPCODE_WRITE, signaled);
}

GDSYNC_DEVICE u64 write_put_inline(const gdsync_device_qp &qp, u64 index, remote_memory to, const void *bytes, u32 count, bool signaled) {
    Block block(qp, index);
    block.put_remote(to.address, to.rkey);
    block.put_inline((const u8 *)bytes, count);
    return block.finish(OPCODE_WRITE, signaled);
}

GDSYNC_DEVICE u64 write_atomic(const gdsync_device_qp &qp, u64 index, u32 opcode, remote_memory target, u64 swap_or_add, u64 compare,
                                local_memory result, bool signaled) {
    Block block(qp, index);
    block.put_remote(target.address, target.rkey);
    block.put_operands(swap_or_add, compare);
    block.put_data(result.address, result.lkey, 8);
    return block.finish(opcode, signaled);
}

} // namespace detail

// Writes `bytes` (at most MAX_BYTES) of this side's memory to the remote side.
template <scope S = scope::thread>
GDSYNC_DEVICE status put(const gdsync_device_qp &qp, remote_memory to, local_memory from, u64 bytes,
                         const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, bytes <= MAX_BYTES, options, [&](u64 index, bool signaled) {
        return detail::write_put(qp, index, to, from, (u32)bytes, signaled);
    });
}

// Writes up to MAX_INLINE_PUT bytes, which are copied before the call returns.
template <scope S = scope::thread>
GDSYNC_DEVICE status put_inline(const gdsync_device_qp &qp, remote_memory to, const void *from, u64 bytes,
                                const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, bytes <= MAX_INLINE_PUT, options, [&](u64 index, bool signaled) {
        return detail::write_put_inline(qp, index, to, from, (u32)bytes, signaled);
    });
}

// Writes `bytes` of this side's memory, and after them the 64-bit word `value` to `signal`: a reader that sees the
// word sees the bytes (device_verbs.cuh says where), unless the queue pair places messages out of order
// (`QueuePair::places_out_of_order` in Rust): then `put_signal_add` keeps that promise. Two blocks.
template <scope S = scope::thread>
GDSYNC_DEVICE status put_signal(const gdsync_device_qp &qp, remote_memory to, local_memory from, u64 bytes, remote_memory signal, u64 value,
                                const post_options &options = post_options()) {
    const bool valid = bytes <= MAX_BYTES && signal.address % 8 == 0;
    return detail::post_blocks<S, 2>(qp, valid, options, [&](u64 index, bool signaled) {
        detail::write_put(qp, index, to, from, (u32)bytes, false);
        return detail::write_put_inline(qp, index + 1, signal, &value, 8, signaled);
    });
}

// As `put_signal`, but adds `value` to the 64-bit word, so that many senders can share it. The card writes the word's
// old value to `before`, 8 writable bytes of this side's memory.
template <scope S = scope::thread>
GDSYNC_DEVICE status put_signal_add(const gdsync_device_qp &qp, remote_memory to, local_memory from, u64 bytes, remote_memory signal,
                                    u64 value, local_memory before, const post_options &options = post_options()) {
    const bool valid = bytes <= MAX_BYTES && signal.address % 8 == 0;
    return detail::post_blocks<S, 2>(qp, valid, options, [&](u64 index, bool signaled) {
        detail::write_put(qp, index, to, from, (u32)bytes, false);
        return detail::write_atomic(qp, index + 1, detail::OPCODE_FETCH_ADD, signal, value, 0, before, signaled);
    });
}

// Reads `bytes` (at most MAX_BYTES) of the remote side's memory. They are there once the request has completed.
template <scope S = scope::thread>
GDSYNC_DEVICE status get(const gdsync_device_qp &qp, remote_memory from, local_memory to, u64 bytes,
                         const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, bytes <= MAX_BYTES, options, [&](u64 index, bool signaled) {
        detail::Block block(qp, index);
        block.put_remote(from.address, from.rkey);
        block.put_data(to.address, to.lkey, (u32)bytes);
        return block.finish(detail::OPCODE_READ, signaled);
    });
}

// Sends a message of `bytes` (at most MAX_BYTES) to the receive that the remote side has posted.
template <scope S = scope::thread>
GDSYNC_DEVICE status send(const gdsync_device_qp &qp, local_memory from, u64 bytes, const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, bytes <= MAX_BYTES, options, [&](u64 index, bool signaled) {
        detail::Block block(qp, index);
        block.put_data(from.address, from.lkey, (u32)bytes);
        return block.finish(detail::OPCODE_SEND, signaled);
    });
}

// Sends up to MAX_INLINE_SEND bytes, which are copied before the call returns.
template <scope S = scope::thread>
GDSYNC_DEVICE status send_inline(const gdsync_device_qp &qp, const void *from, u64 bytes, const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, bytes <= MAX_INLINE_SEND, options, [&](u64 index, bool signaled) {
        detail::Block block(qp, index);
        block.put_inline((const u8 *)from, (u32)bytes);
        return block.finish(detail::OPCODE_SEND, signaled);
    });
}

// Adds to a remote 64-bit word, aligned to 8 bytes. The card writes its old value to `before`, 8 bytes.
template <scope S = scope::thread>
GDSYNC_DEVICE status fetch_add(const gdsync_device_qp &qp, remote_memory target, u64 value, local_memory before,
                               const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, target.address % 8 == 0, options, [&](u64 index, bool signaled) {
        return detail::write_atomic(qp, index, detail::OPCODE_FETCH_ADD, target, value, 0, before, signaled);
    });
}

// Sets a remote 64-bit word, aligned to 8 bytes, to `desired` if it is `expected`. The card writes its old value to `before`, 8 bytes.
template <scope S = scope::thread>
GDSYNC_DEVICE status compare_swap(const gdsync_device_qp &qp, remote_memory target, u64 expected, u64 desired, local_memory before,
                                  const post_options &options = post_options()) {
    return detail::post_blocks<S, 1>(qp, target.address % 8 == 0, options, [&](u64 index, bool signaled) {
        return detail::write_atomic(qp, index, detail::OPCODE_COMPARE_SWAP, target, desired, expected, before, signaled);
    });
}

// Rings the card for all requests that this thread has posted, or has seen posted, before.
GDSYNC_DEVICE status ring(const gdsync_device_qp &qp) {
    return detail::ring_what_waits(detail::doorbells_of(qp), detail::load_published(detail::state_of(qp)));
}

// Checks once for completions and does not wait: `ok`, or `failed`. `completed` (may be null) becomes the number of
// completed blocks: a request has completed if its ticket is not greater.
GDSYNC_DEVICE status poll(const gdsync_device_qp &qp, u64 *completed = nullptr) {
    detail::reap(detail::completions_of(qp));
    // Acquire: as in `detail::wait_completed`.
    const u64 done = detail::load_acquire_gpu(&detail::state_of(qp)->completed);
    if (completed != nullptr) {
        *completed = done;
    }
    return error(qp) == 0 ? status::ok : status::failed;
}

namespace detail {

// `wait` of one thread.
GDSYNC_DEVICE status wait_alone(const gdsync_device_qp &qp, u64 ticket, u64 timeout_ns) {
    // No post gave such a ticket, unless the queue pair has failed: a failed post gives one, too.
    if (ticket > load_published(state_of(qp))) {
        return error(qp) != 0 ? status::failed : status::invalid;
    }
    const status rung = ring_what_waits(doorbells_of(qp), ticket);
    return rung == status::ok ? wait_completed(completions_of(qp), ticket, timeout_ns) : rung;
}

// `wait` of a group.
template <scope S> GDSYNC_DEVICE status wait_as(const Group<S> &group, const gdsync_device_qp &qp, u64 ticket, u64 timeout_ns) {
    status result = status::ok;
    u64 of_leader = ticket;
    group.sync();
    if (group.leads()) {
        result = wait_alone(qp, ticket, timeout_ns);
    }
    // All threads see the writes that the leader has acquired.
    group.share(result, of_leader);
    // Threads of a warp that diverged in their posts have several tickets.
    return result == status::ok && ticket > of_leader ? wait_alone(qp, ticket, timeout_ns) : result;
}

// `quiet` of a group.
template <scope S> GDSYNC_DEVICE status quiet_as(const Group<S> &group, const gdsync_device_qp &qp, u64 timeout_ns) {
    // The leader sees the publications of the other threads of the group.
    group.sync();
    return wait_as(group, qp, group.leads() ? load_published(state_of(qp)) : 0, timeout_ns);
}

} // namespace detail

// Waits until the request with this ticket, and all before it, have completed. At warp and block scope each thread gives the ticket
// that its post returned: the leader waits for all, and a thread with a later ticket (from a post in which the warp diverged) waits
// separately, again within the time limit. Rings first for requests that were posted with `more`.
template <scope S = scope::thread> GDSYNC_DEVICE status wait(const gdsync_device_qp &qp, u64 ticket, u64 timeout_ns) {
    return detail::wait_as(detail::Group<S>(), qp, ticket, timeout_ns);
}

// Waits until all requests have completed that this thread (at warp and block scope, any thread of the group) has
// posted before, and all that other threads had posted by then.
template <scope S = scope::thread> GDSYNC_DEVICE status quiet(const gdsync_device_qp &qp, u64 timeout_ns) {
    return detail::quiet_as(detail::Group<S>(), qp, timeout_ns);
}

// Waits until a word that a remote side writes (`put_signal`) is at least `value`, as unsigned numbers. The caller
// then sees the writes before the word (device_verbs.cuh says where).
GDSYNC_DEVICE status wait_signal(const u64 *word, u64 value, u64 timeout_ns) {
    detail::Waited waited;
    // Relaxed until the value is there; then one acquire.
    while (detail::load_relaxed_system(word) < value) {
        if (waited.longer_than(timeout_ns)) {
            return status::timed_out;
        }
    }
    detail::load_acquire_system(word);
    return status::ok;
}

} // namespace gdsync

#endif
