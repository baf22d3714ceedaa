// Ranks that are kernels, or threads of the CPU: they write to each other, notify, and check every byte.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

// The arguments of one rank. The outbox and the inbox have a slot for each rank; each rank sets three notifications.
struct job {
    gdsync_queue queue;
    gdsync_segment outbox;
    gdsync_segment inbox;
    u64 rounds;
    // Bytes of a slot.
    u64 slot;
    u64 timeout_ns;
    // 0, or the line of this file where an error was found.
    u64 failed;
};

static_assert(sizeof(job) == 192, "as the tests'");

static const u8 GUARD = 0xa5;

GDSYNC_DEVICE u8 byte_of(u32 from, u32 to, u64 round, u64 at) { return (u8)(from * 31 + to * 17 + round * 7 + at * 3 + at / 251); }

GDSYNC_DEVICE u64 length_of(u32 from, u32 to, u64 round, u64 slot) { return (from * 5 + to * 3 + round * 11) % (slot + 1); }

// Every rank sends to every rank including itself, and the next round begins when all have reported that they have read. The
// threads of the group fill and compare, the leader posts. A rank may begin the next round while another rank still reads messages
// of this one: so the notifications of even and odd rounds differ. Returns the line of the first error.
template <scope S> GDSYNC_DEVICE u32 all_to_all(const job &j) {
    const detail::Group<S> group;
    const u32 own = j.queue.rank, size = j.queue.size;
    u8 *outbox = (u8 *)j.outbox.data, *inbox = (u8 *)j.inbox.data;
    post_options options;
    options.timeout(j.timeout_ns);
    const u32 acknowledged = 2 * size;
    for (u64 round = 0; round < j.rounds; round++) {
        const u32 first = (u32)(round % 2) * size;
        for (u32 to = 0; to < size; to++) {
            for (u64 i = group.rank(); i < length_of(own, to, round, j.slot); i += group.size()) {
                outbox[to * j.slot + i] = byte_of(own, to, round, i);
            }
        }
        group.sync();
        status posted = status::ok;
        for (u32 to = 0; group.leads() && to < size && posted == status::ok; to++) {
            const u64 bytes = length_of(own, to, round, j.slot);
            posted = write_notify(j.queue, j.outbox, to * j.slot, to, j.inbox, own * j.slot, bytes, first + own, (u32)bytes + 1, options);
        }
        if (group.any(posted != status::ok)) {
            return __LINE__;
        }
        for (u32 n = 0; n < size; n++) {
            u32 id = 0, value = 0;
            status came = notify_waitsome<S>(j.inbox, first, first + size, &id, j.timeout_ns);
            // Diverged threads of a warp may have found different values: all take the leader's.
            u64 of_leader = id;
            group.share(came, of_leader);
            if (came != status::ok) {
                return __LINE__;
            }
            id = (u32)of_leader;
            const u32 from = id - first;
            // All see the writes that the leader has seen.
            group.sync();
            const u64 bytes = length_of(from, own, round, j.slot);
            bool right = !group.leads() || (notify_reset(j.inbox, id, &value) == status::ok && value == bytes + 1);
            u8 *slot = inbox + from * j.slot;
            for (u64 i = group.rank(); i < j.slot; i += group.size()) {
                right = right && slot[i] == (i < bytes ? byte_of(from, own, round, i) : GUARD);
                slot[i] = GUARD;
            }
            if (group.any(!right)) {
                return __LINE__;
            }
            group.sync();
            posted = group.leads() ? notify(j.queue, from, j.inbox, acknowledged + own, (u32)round + 1, options) : status::ok;
            if (group.any(posted != status::ok)) {
                return __LINE__;
            }
        }
        for (u32 to = 0; to < size; to++) {
            u32 id = 0, value = 0;
            const u32 expected = acknowledged + to;
            bool right = notify_waitsome<S>(j.inbox, expected, expected + 1, &id, j.timeout_ns) == status::ok && id == expected;
            // No thread takes the notification before all have seen it.
            if (group.any(!right)) {
                return __LINE__;
            }
            right = !group.leads() || (notify_reset(j.inbox, id, &value) == status::ok && value == round + 1);
            if (group.any(!right)) {
                return __LINE__;
            }
        }
    }
    return quiet<S>(j.queue, j.timeout_ns) == status::ok ? 0 : __LINE__;
}

// The threads of a group each write a word to the next rank, with a notification each; slots are for all threads together here.
template <scope S> GDSYNC_DEVICE u32 together(const job &j) {
    const detail::Group<S> group;
    const u32 size = j.queue.size, own = j.queue.rank, next = (own + 1) % size, before = (own + size - 1) % size;
    const u32 thread = group.rank(), threads = group.size();
    u64 *outbox = (u64 *)j.outbox.data, *inbox = (u64 *)j.inbox.data;
    post_options options;
    options.timeout(j.timeout_ns);
    for (u64 round = 0; round < j.rounds; round++) {
        outbox[thread] = round << 32 | own << 16 | thread;
        u32 id = 0, value = 0;
        bool right = write_notify<S>(j.queue, j.outbox, thread * 8, next, j.inbox, thread * 8, 8, thread, (u32)round + 1, options) ==
                     status::ok;
        right = right && notify_waitsome(j.inbox, thread, thread + 1, &id, j.timeout_ns) == status::ok;
        right = right && id == thread && inbox[thread] == (round << 32 | before << 16 | thread);
        right = right && notify_reset(j.inbox, id, &value) == status::ok && value == round + 1;
        if (group.any(!right)) {
            return __LINE__;
        }
        // Confirms that it was read.
        right = notify<S>(j.queue, before, j.inbox, threads + thread, 1, options) == status::ok;
        right = right && notify_waitsome(j.inbox, threads + thread, threads + thread + 1, &id, j.timeout_ns) == status::ok;
        right = right && notify_reset(j.inbox, id, &value) == status::ok && value == 1;
        if (group.any(!right)) {
            return __LINE__;
        }
    }
    return quiet<S>(j.queue, next, j.timeout_ns) == status::ok && quiet<S>(j.queue, before, j.timeout_ns) == status::ok ? 0 : __LINE__;
}

#if defined(__CUDACC__)

// Each block is a rank.
#define GDSYNC_TEST_KERNEL(NAME, S)                                                                                                    \
    extern "C" __global__ void NAME##_##S(job *jobs) {                                                                                 \
        job *own = jobs + blockIdx.x;                                                                                                  \
        const job j = *own;                                                                                                            \
        const u32 failed = NAME<scope::S>(j);                                                                                          \
        if (failed != 0) {                                                                                                             \
            own->failed = failed;                                                                                                      \
        }                                                                                                                              \
    }

GDSYNC_TEST_KERNEL(all_to_all, warp)
GDSYNC_TEST_KERNEL(all_to_all, block)
GDSYNC_TEST_KERNEL(together, warp)
GDSYNC_TEST_KERNEL(together, block)

#else

#include <cstddef>

extern "C" {

u32 run_all_to_all(const job *j) { return all_to_all<scope::thread>(*j); }
u32 run_together(const job *j) { return together<scope::thread>(*j); }

// One call, from and to the two segments of a rank.
struct request {
    u64 from_offset;
    u64 to_offset;
    u64 bytes;
    u32 rank;
    u32 id;
    u32 value;
    u32 zero;
};

int call_write(const job *j, const request *r) {
    return (int)write(j->queue, j->outbox, r->from_offset, r->rank, j->inbox, r->to_offset, r->bytes);
}

int call_notify(const job *j, const request *r) { return (int)notify(j->queue, r->rank, j->inbox, r->id, r->value); }

int call_write_notify(const job *j, const request *r) {
    return (int)write_notify(j->queue, j->outbox, r->from_offset, r->rank, j->inbox, r->to_offset, r->bytes, r->id, r->value);
}

int call_waitsome(const job *j, u32 begin, u32 end, u32 *id, u64 timeout_ns) {
    return (int)notify_waitsome(j->inbox, begin, end, id, timeout_ns);
}

int call_reset(const job *j, u32 id, u32 *value) { return (int)notify_reset(j->inbox, id, value); }
int call_quiet(const job *j, u32 rank, u64 timeout_ns) { return (int)quiet(j->queue, rank, timeout_ns); }
int call_quiet_all(const job *j, u64 timeout_ns) { return (int)quiet(j->queue, timeout_ns); }

u64 call_error(const job *j, u32 rank) {
    const gdsync_device_qp *qp = queue_pair(j->queue, rank);
    return qp == nullptr ? ~0ull : error(*qp);
}

// The byte offsets that the Rust layout must have: of the queue, of a rank's part, of the segment.
int layout(u64 *into) {
    const u64 offsets[] = {
        offsetof(gdsync_queue, queue_pairs),     offsetof(gdsync_queue, size),          offsetof(gdsync_queue, rank),
        offsetof(gdsync_queue, version),         offsetof(gdsync_queue, flags),         offsetof(gdsync_segment_part, data),
        offsetof(gdsync_segment_part, bytes),    offsetof(gdsync_segment_part, words),  offsetof(gdsync_segment_part, count),
        offsetof(gdsync_segment_part, rkey),     offsetof(gdsync_segment, parts),       offsetof(gdsync_segment, data),
        offsetof(gdsync_segment, words),         offsetof(gdsync_segment, card_data),   offsetof(gdsync_segment, bytes),
        offsetof(gdsync_segment, lkey),          offsetof(gdsync_segment, count),       offsetof(gdsync_segment, size),
        offsetof(gdsync_segment, version),       offsetof(gdsync_segment, flags),       offsetof(gdsync_segment, watched),
    };
    int count = 0;
    for (u64 offset : offsets) {
        into[count++] = offset;
    }
    return count;
}

} // extern "C"

#endif
