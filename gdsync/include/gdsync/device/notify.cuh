// Notified writes: a kernel writes into the memory of another rank, then sets a word there; a reader that sees the word sees the
// data.
//
// The host connects the ranks (`gdsync_notify::Team` in Rust), gives all queue pairs of one of its queues to kernels
// (`Queue::attach_device`), and describes segments to them (`Segment::describe_to_device`). Kernels, streams and CPUs of different
// ranks write to each other in any mixture.
//
//     __global__ void step(gdsync_queue queue, gdsync_segment mine, gdsync_segment theirs, ...) {
//         ... compute `mine` ...
//         __syncthreads();
//         if (threadIdx.x == 0) {
//             gdsync::write_notify(queue, mine, 0, next, theirs, 0, bytes, 3, 1);
//             gdsync::u32 id, value;
//             if (gdsync::notify_waitsome(theirs, 0, 8, &id, 1000000000) == gdsync::status::ok) {
//                 gdsync::notify_reset(theirs, id, &value);
//             }
//         }
//     }
//
// # Why a reader that sees the notification sees the data
//
// Sender: both are writes of one reliable queue pair, posted in this order, and the post releases the calling threads' writes at
// system scope. The card performs them in that order (GDSYNC_QUEUE_OUT_OF_ORDER: where it does not by itself), into memory that is registered without relaxed ordering, and the word, which
// is aligned and inline in the request, atomically. Receiver: `notify_waitsome` reads the word by an acquire load at system scope,
// which orders the caller's later reads after it. With host memory that is all. With GPU memory the GPU must keep the order of the
// card's writes for running kernels: see "Visibility of a card's writes to kernels" in device_verbs.cuh.
// `Segment::describe_to_device` refuses GPUs that do not. Reverse direction: a kernel that has read the data notifies the sender
// that it may write again by a release, which orders the reads before it.
#ifndef GDSYNC_DEVICE_NOTIFY_CUH
#define GDSYNC_DEVICE_NOTIFY_CUH

#include "ops.cuh"

// The version of the structures below. Calls with other versions are refused (`status::invalid`).
#define GDSYNC_NOTIFY_VERSION 1u

// `flags` of gdsync_queue: the queue pairs place messages out of order. A notification then follows an empty read, and starts when
// that has completed, as have all writes before it: a block and a round trip more. Writes of the same memory have no order.
#define GDSYNC_QUEUE_OUT_OF_ORDER 1ull

// The queue pairs of one of a team's queues, one to every rank including itself: plain data, which the library fills in.
struct gdsync_queue {
    // An array with the gdsync_device_qp of each rank.
    unsigned long long queue_pairs;
    // Number of ranks.
    unsigned int size;
    // This rank.
    unsigned int rank;
    // GDSYNC_NOTIFY_VERSION.
    unsigned int version;
    unsigned int zero;
    // GDSYNC_QUEUE_*.
    unsigned long long flags;
};

// The part of one rank, as cards name it.
struct gdsync_segment_part {
    // The data, and their length in bytes.
    unsigned long long data;
    unsigned long long bytes;
    // The notifications, 32-bit words, and their number.
    unsigned long long words;
    unsigned int count;
    // The key from the remote side.
    unsigned int rkey;
};

// `flags` of gdsync_segment: the local notifications are in host memory, where the GPU's atomic operations are atomic
// only for its threads (CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED is 0, as mostly over PCIe).
#define GDSYNC_SEGMENT_ATOMIC_IN_GPU 1u

// A nonzero status of a notification: waits for it are released, as the rank in the low bits is dead, and might have
// set it. The second bit says that the team has dropped that rank (`Team::shrink`).
#define GDSYNC_NOTIFY_PEER_DEAD 0x80000000u
#define GDSYNC_NOTIFY_DROPPED 0x40000000u
#define GDSYNC_NOTIFY_RANK 0x3fffffffu
// The value of a notification whose waits are released. If the status is 0, it is an ordinary value.
#define GDSYNC_NOTIFY_RELEASED 0x9d5dead1u

// Follows the last part of a segment that is `watched`.
struct gdsync_segment_watch {
    // The status of each local notification, 32-bit words in host memory.
    unsigned long long statuses;
    unsigned long long reserved[3];
};

// Memory of which every rank has a part: plain data, which the library fills in.
struct gdsync_segment {
    // An array with the gdsync_segment_part of each rank.
    unsigned long long parts;
    // The local part as kernels name it: data and notifications.
    unsigned long long data;
    unsigned long long words;
    // The local data as the card names them, and their length in bytes.
    unsigned long long card_data;
    unsigned long long bytes;
    // The card's key of the local part.
    unsigned int lkey;
    // Number of local notifications.
    unsigned int count;
    // Number of ranks.
    unsigned int size;
    // GDSYNC_NOTIFY_VERSION.
    unsigned int version;
    // GDSYNC_SEGMENT_*.
    unsigned int flags;
    // 1: a gdsync_segment_watch follows the parts.
    unsigned int watched;
};

static_assert(sizeof(gdsync_queue) == 32, "as the library's");
static_assert(sizeof(gdsync_segment_part) == 32, "as the library's");
static_assert(sizeof(gdsync_segment_watch) == 32, "as the library's");
static_assert(sizeof(gdsync_segment) == 64, "as the library's");

namespace gdsync {
namespace detail {

GDSYNC_DEVICE bool is_known(const gdsync_queue &queue) { return queue.version == GDSYNC_NOTIFY_VERSION && queue.size != 0; }

GDSYNC_DEVICE bool is_known(const gdsync_segment &segment) { return segment.version == GDSYNC_NOTIFY_VERSION; }

// The data of the local part, from `offset` on. False if `bytes` do not fit.
GDSYNC_DEVICE bool own_part(const gdsync_segment &segment, u64 offset, u64 bytes, local_memory &found) {
    found = {segment.card_data + offset, segment.lkey};
    return is_known(segment) && bytes <= MAX_BYTES && offset <= segment.bytes && bytes <= segment.bytes - offset;
}

// The same of a rank's part.
GDSYNC_DEVICE bool part_of(const gdsync_segment &segment, u32 rank, u64 offset, u64 bytes, remote_memory &found) {
    if (!is_known(segment) || rank >= segment.size) {
        return false;
    }
    const gdsync_segment_part *part = (const gdsync_segment_part *)segment.parts + rank;
    found = {part->data + offset, part->rkey};
    return offset <= part->bytes && bytes <= part->bytes - offset;
}

// A notification of a rank's part.
GDSYNC_DEVICE bool word_of(const gdsync_segment &segment, u32 rank, u32 id, u32 value, remote_memory &found) {
    if (!is_known(segment) || rank >= segment.size) {
        return false;
    }
    const gdsync_segment_part *part = (const gdsync_segment_part *)segment.parts + rank;
    found = {part->words + 4ull * id, part->rkey};
    // 0 would be no notification.
    return id < part->count && value != 0;
}

// Posts for a group, whose threads name the same rank: `valid` becomes false for a thread that names another rank than the leader.
template <scope S, u32 BLOCKS, class Build>
GDSYNC_DEVICE status post_to(const gdsync_queue &queue, u32 rank, bool valid, const post_options &options, const Build &build) {
    if (!is_known(queue)) {
        return status::invalid;
    }
    u32 of_leader = rank;
    const Group<S> group;
    group.share(of_leader);
    // By value, so that it can be in registers. If there is no such rank, nothing is posted, and any rank's queue pair will do.
    const gdsync_device_qp qp = ((const gdsync_device_qp *)queue.queue_pairs)[of_leader < queue.size ? of_leader : 0];
    const bool right = valid && rank < queue.size && rank == of_leader;
    return post<S, BLOCKS>(group, qp, right, options.ring_now, options.timeout_ns, options.ticket,
                           [&](u64 index, bool signaled) { return build(qp, index, signaled); });
}

GDSYNC_DEVICE bool is_out_of_order(const gdsync_queue &queue) { return (queue.flags & GDSYNC_QUEUE_OUT_OF_ORDER) != 0; }

// Writes an empty read, and behind it a notification that waits for it: two blocks.
GDSYNC_DEVICE u64 write_ordered_word(const gdsync_device_qp &qp, u64 index, remote_memory word, u32 value, bool signaled) {
    Block read(qp, index);
    read.put_remote(0, 0);
    read.finish(OPCODE_READ, false);
    Block block(qp, index + 1);
    block.put_remote(word.address, word.rkey);
    block.put_inline((const u8 *)&value, 4);
    return block.finish(OPCODE_WRITE, signaled, true);
}

// The status of a local notification with the value GDSYNC_NOTIFY_RELEASED: 0 if that is an ordinary value. The
// library writes the status before the word, and clears it after the word.
GDSYNC_DEVICE u32 released_status(const gdsync_segment &segment, u32 id) {
    if (segment.watched == 0) {
        return 0;
    }
    const gdsync_segment_watch *watch = (const gdsync_segment_watch *)((const gdsync_segment_part *)segment.parts + segment.size);
    return load_acquire_system((const u32 *)watch->statuses + id);
}

// The result of one pass over a range of notifications.
struct notified {
    // The first that is set; the range's end if none is.
    u32 id;
    // The status of the first that is released, preferably of a rank that the team has not dropped; 0 if none is.
    u32 status;
    // For ranks that the team has dropped.
    u32 dropped;
};

// Adds a notification that is GDSYNC_NOTIFY_RELEASED. Returns true if that is its ordinary value.
GDSYNC_DEVICE_RARE bool add_released(const gdsync_segment &segment, u32 id, notified *found) {
    const u32 *word = (const u32 *)segment.words + id;
    // Acquire: the status is read after the word.
    if (load_acquire_system(word) != GDSYNC_NOTIFY_RELEASED) {
        return false;
    }
    const u32 status = released_status(segment, id);
    if (status == 0) {
        // The release may have been revoked between the two loads.
        return load_acquire_system(word) == GDSYNC_NOTIFY_RELEASED;
    }
    const bool is_dropped = (status & GDSYNC_NOTIFY_DROPPED) != 0;
    found->dropped += is_dropped ? 1 : 0;
    if (found->status == 0 || (!is_dropped && (found->status & GDSYNC_NOTIFY_DROPPED) != 0)) {
        found->status = status;
    }
    return false;
}

// Checks a range of local notifications once.
GDSYNC_DEVICE notified look(const gdsync_segment &segment, u32 begin, u32 end) {
    const u32 *words = (const u32 *)segment.words;
    notified found = {end, 0, 0};
    GDSYNC_DEVICE_LOOP
    for (u32 id = begin; id < end; id++) {
        // Relaxed until one is there; then one acquire.
        const u32 value = load_relaxed_system(words + id);
        if (value != 0 && (value != GDSYNC_NOTIFY_RELEASED || add_released(segment, id, &found))) {
            found.id = id;
            break;
        }
    }
    return found;
}

// Takes a notification. Acquire: the thread sees the data written before it. Release: this thread's reads precede the
// writes of a sender after the word is free.
GDSYNC_DEVICE u32 take_word(const gdsync_segment &segment, u32 *at) {
    if ((segment.flags & GDSYNC_SEGMENT_ATOMIC_IN_GPU) == 0) {
        return exchange_system(at, 0);
    }
    // No atomic operation has system scope here; the fences have. The exchange takes only the value that was seen, so
    // that a late thread does not take a later notification.
    u32 seen = load_relaxed_system(at);
    while (seen != 0) {
        acquire_and_release_to_system();
        const u32 found = exchange_relaxed_gpu(at, seen, 0);
        if (found == seen) {
            acquire_and_release_to_system();
            return seen;
        }
        seen = found;
    }
    return 0;
}

} // namespace detail

// The queue pair to a rank, for `error`, `syndrome`, `poll`, `wait` and every other call; null if there is no such
// rank, or the team had dropped it when the queue was attached.
GDSYNC_DEVICE const gdsync_device_qp *queue_pair(const gdsync_queue &queue, u32 rank) {
    const gdsync_device_qp *at = (const gdsync_device_qp *)queue.queue_pairs + rank;
    return detail::is_known(queue) && rank < queue.size && at->version != 0 ? at : nullptr;
}

// Writes `bytes` (at most MAX_BYTES) of the local part of `from`, from `from_offset` on, into a rank's part of `to`,
// without a notification. The source must not change before `quiet`.
//
// At warp and block scope every thread posts its write, all of them to the same rank: if threads name different
// ranks, none of them posts (`status::invalid`). The same holds for all calls that post.
template <scope S = scope::thread>
GDSYNC_DEVICE status write(const gdsync_queue &queue, const gdsync_segment &from, u64 from_offset, u32 rank, const gdsync_segment &to,
                           u64 to_offset, u64 bytes, const post_options &options = post_options()) {
    local_memory source = {};
    remote_memory target = {};
    const bool valid = detail::own_part(from, from_offset, bytes, source) && detail::part_of(to, rank, to_offset, bytes, target);
    return detail::post_to<S, 1>(queue, rank, valid, options, [&](const gdsync_device_qp &qp, u64 index, bool signaled) {
        return detail::write_put(qp, index, target, source, (u32)bytes, signaled);
    });
}

// Sets a notification of a rank's part to `value`, which is not 0, after everything that was posted before to that
// rank through this queue.
template <scope S = scope::thread>
GDSYNC_DEVICE status notify(const gdsync_queue &queue, u32 rank, const gdsync_segment &to, u32 id, u32 value,
                            const post_options &options = post_options()) {
    remote_memory word = {};
    const bool valid = detail::word_of(to, rank, id, value, word);
    if (detail::is_out_of_order(queue)) {
        return detail::post_to<S, 2>(queue, rank, valid, options, [&](const gdsync_device_qp &qp, u64 index, bool signaled) {
            return detail::write_ordered_word(qp, index, word, value, signaled);
        });
    }
    return detail::post_to<S, 1>(queue, rank, valid, options, [&](const gdsync_device_qp &qp, u64 index, bool signaled) {
        return detail::write_put_inline(qp, index, word, &value, 4, signaled);
    });
}

// `write`, then `notify`, with one reservation and one doorbell: two blocks, or three. Nothing is posted if one cannot be.
template <scope S = scope::thread>
GDSYNC_DEVICE status write_notify(const gdsync_queue &queue, const gdsync_segment &from, u64 from_offset, u32 rank,
                                  const gdsync_segment &to, u64 to_offset, u64 bytes, u32 id, u32 value,
                                  const post_options &options = post_options()) {
    local_memory source = {};
    remote_memory target = {}, word = {};
    const bool valid = detail::own_part(from, from_offset, bytes, source) && detail::part_of(to, rank, to_offset, bytes, target) &&
                       detail::word_of(to, rank, id, value, word);
    if (detail::is_out_of_order(queue)) {
        return detail::post_to<S, 3>(queue, rank, valid, options, [&](const gdsync_device_qp &qp, u64 index, bool signaled) {
            detail::write_put(qp, index, target, source, (u32)bytes, false);
            return detail::write_ordered_word(qp, index + 1, word, value, signaled);
        });
    }
    return detail::post_to<S, 2>(queue, rank, valid, options, [&](const gdsync_device_qp &qp, u64 index, bool signaled) {
        detail::write_put(qp, index, target, source, (u32)bytes, false);
        return detail::write_put_inline(qp, index + 1, word, &value, 4, signaled);
    });
}

// Waits until one of the local notifications from `begin` to before `end` is set; `id` becomes the lowest that is. With a time of
// 0, and with an empty range, it checks once: `status::timed_out` if none is set. The notification stays until `notify_reset`.
//
// `status::peer_dead`: none is set, and a rank that might set one of them is dead; `id` becomes that rank. The host says which rank
// may set a notification (`Segment::expect_from` in Rust); otherwise any rank may. Notifications of ranks that the team has dropped
// end the wait only if there are no others in the range.
//
// At warp and block scope the leader waits, for the range that it gives; all threads get its result and see the data. Diverged
// threads of a warp are several groups, which may find different notifications.
template <scope S = scope::thread>
GDSYNC_DEVICE status notify_waitsome(const gdsync_segment &segment, u32 begin, u32 end, u32 *id, u64 timeout_ns) {
    const detail::Group<S> group;
    u64 found = begin;
    status result = detail::is_known(segment) && begin <= end && end <= segment.count ? status::ok : status::invalid;
    if (group.any(result != status::ok)) {
        return status::invalid;
    }
    if (group.leads()) {
        const u32 *words = (const u32 *)segment.words;
        detail::Waited waited;
        GDSYNC_DEVICE_LOOP
        for (;;) {
            const detail::notified seen = detail::look(segment, begin, end);
            if (seen.id != end) {
                found = seen.id;
                detail::load_acquire_system(words + found);
                break;
            }
            const bool is_dropped = (seen.status & GDSYNC_NOTIFY_DROPPED) != 0;
            if (seen.status != 0 && (!is_dropped || seen.dropped == end - begin)) {
                found = seen.status & GDSYNC_NOTIFY_RANK;
                result = status::peer_dead;
                break;
            }
            if (begin == end || waited.longer_than(timeout_ns)) {
                result = status::timed_out;
                break;
            }
        }
    }
    // The leader's acquire precedes the reads of the others.
    group.share(result, found);
    if (result == status::ok || result == status::peer_dead) {
        *id = (u32)found;
    }
    return result;
}

// Takes one of the local notifications: `value` becomes its value, 0 if it was not set, or if waits for it are released. If several
// threads of the GPU take it, one gets it.
//
// In GPU memory that is atomic for the card, too: a notification that arrives at the same time is either taken or stays. In host
// memory it is atomic only if the GPU's atomics on host memory are (GDSYNC_SEGMENT_ATOMIC_IN_GPU is set if not): otherwise a
// notification of the same number that arrives during the call may be lost. So the sender must wait for an answer that the last one
// was taken, as with streams, and one thread should take all notifications of a number.
GDSYNC_DEVICE status notify_reset(const gdsync_segment &segment, u32 id, u32 *value) {
    if (!detail::is_known(segment) || id >= segment.count) {
        return status::invalid;
    }
    const u32 taken = detail::take_word(segment, (u32 *)segment.words + id);
    // The host releases it again.
    *value = taken == GDSYNC_NOTIFY_RELEASED && detail::released_status(segment, id) != 0 ? 0 : taken;
    return status::ok;
}

// Waits until all earlier requests to a rank have arrived: their sources may change then. As `quiet` of its queue
// pair; at warp and block scope for the rank that the leader names.
template <scope S = scope::thread> GDSYNC_DEVICE status quiet(const gdsync_queue &queue, u32 rank, u64 timeout_ns) {
    u32 of_leader = rank;
    const detail::Group<S> group;
    group.share(of_leader);
    const gdsync_device_qp *at = queue_pair(queue, of_leader);
    return at == nullptr ? status::invalid : detail::quiet_as(group, *at, timeout_ns);
}

// The same for all ranks of the team, within one time limit. It waits for ranks after a failed one, too, and returns
// the first status that is not `ok`; `quiet` of each rank says which rank that was.
template <scope S = scope::thread> GDSYNC_DEVICE status quiet(const gdsync_queue &queue, u64 timeout_ns) {
    if (!detail::is_known(queue)) {
        return status::invalid;
    }
    const u64 start = detail::now_ns();
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u32 rank = 0; rank < queue.size; rank++) {
        if (queue_pair(queue, rank) == nullptr) {
            continue;
        }
        const u64 gone = detail::now_ns() - start;
        const status one = quiet<S>(queue, rank, gone < timeout_ns ? timeout_ns - gone : 0);
        result = result == status::ok ? one : result;
    }
    return result;
}

} // namespace gdsync

#endif
