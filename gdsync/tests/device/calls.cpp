// The device header as host C++, called from the tests in Rust: each function of a kernel, and many threads at a
// time.
#include "gdsync/device_verbs.cuh"

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

using namespace gdsync;

extern "C" {

struct request {
    u32 operation;
    u32 lkey;
    u64 local;
    u64 bytes;
    u64 remote;
    u64 signal;
    u64 value;
    u64 desired;
    u64 timeout_ns;
    u32 rkey;
    u32 more;
};

// The byte offsets that the Rust layout must have: of the queue pair, then of its state.
int layout(u64 *into) {
    const u64 offsets[] = {
        offsetof(gdsync_device_qp, send_ring),       offsetof(gdsync_device_qp, send_record),
        offsetof(gdsync_device_qp, doorbell),        offsetof(gdsync_device_qp, completion_ring),
        offsetof(gdsync_device_qp, completion_record), offsetof(gdsync_device_qp, state),
        offsetof(gdsync_device_qp, send_mask),       offsetof(gdsync_device_qp, completion_mask),
        offsetof(gdsync_device_qp, qpn),             offsetof(gdsync_device_qp, limit),
        offsetof(gdsync_device_qp, flags),           offsetof(gdsync_device_qp, version),
        offsetof(gdsync_device_qp, stall_ns),        offsetof(gdsync_device_qp, reserved),
        offsetof(gdsync_device_state, reserved),     offsetof(gdsync_device_state, ready),
        offsetof(gdsync_device_state, posted),       offsetof(gdsync_device_state, completed),
        offsetof(gdsync_device_state, consumed),     offsetof(gdsync_device_state, error),
    };
    int count = 0;
    for (u64 offset : offsets) {
        into[count++] = offset;
    }
    return count;
}

int call(const gdsync_device_qp *qp, const request *r, u64 *ticket) {
    post_options options;
    options.timeout(r->timeout_ns).ticket_to(ticket);
    if (r->more != 0) {
        options.more();
    }
    const local_memory local = {r->local, r->lkey};
    const remote_memory remote = {r->remote, r->rkey}, signal = {r->signal, r->rkey};
    const void *bytes = (const void *)r->local;
    status result = status::invalid;
    switch (r->operation) {
    case 0: result = put(*qp, remote, local, r->bytes, options); break;
    case 1: result = put_inline(*qp, remote, bytes, r->bytes, options); break;
    case 2: result = put_signal(*qp, remote, local, r->bytes, signal, r->value, options); break;
    // The word before the addition is stored after the bytes.
    case 3: result = put_signal_add(*qp, remote, local, r->bytes, signal, r->value, {r->local + r->bytes, r->lkey}, options); break;
    case 4: result = get(*qp, remote, local, r->bytes, options); break;
    case 5: result = send(*qp, local, r->bytes, options); break;
    case 6: result = send_inline(*qp, bytes, r->bytes, options); break;
    case 7: result = fetch_add(*qp, remote, r->value, local, options); break;
    case 8: result = compare_swap(*qp, remote, r->value, r->desired, local, options); break;
    // Groups of the host are single threads.
    case 9: result = put<scope::warp>(*qp, remote, local, r->bytes, options); break;
    case 10: result = put<scope::block>(*qp, remote, local, r->bytes, options); break;
    }
    return (int)result;
}

int call_quiet(const gdsync_device_qp *qp, u64 timeout_ns) { return (int)quiet(*qp, timeout_ns); }
int call_wait(const gdsync_device_qp *qp, u64 ticket, u64 timeout_ns) { return (int)wait(*qp, ticket, timeout_ns); }
int call_poll(const gdsync_device_qp *qp, u64 *completed) { return (int)poll(*qp, completed); }
int call_ring(const gdsync_device_qp *qp) { return (int)ring(*qp); }
int call_wait_signal(const u64 *word, u64 value, u64 timeout_ns) { return (int)wait_signal(word, value, timeout_ns); }
void call_release(const gdsync_trigger *trigger, u64 ticket) { release(*trigger, ticket); }
int call_wait_arrivals(const gdsync_collector *collector, u64 number, u64 timeout_ns) {
    return (int)wait_arrivals(*collector, number, timeout_ns);
}
u64 call_error(const gdsync_device_qp *qp) { return error(*qp); }
u32 call_syndrome(const gdsync_device_qp *qp) { return syndrome(*qp); }
u32 call_crc32(const void *data, u64 bytes, u32 before) { return crc32(data, bytes, before); }

// Leaves the queue in the state of a thread that was stopped in the middle of a call: 0 takes the doorbell, 1 takes a
// block, 2 releases the doorbell.
void stop_inside(const gdsync_device_qp *qp, int where) {
    gdsync_device_state *state = detail::state_of(*qp);
    if (where == 0) {
        __atomic_fetch_or(&state->ready, GDSYNC_DEVICE_RINGING, __ATOMIC_ACQUIRE);
    } else if (where == 1) {
        u64 first;
        detail::take(state, 1, qp->limit, first);
    } else {
        detail::clear_release_gpu(&state->ready, GDSYNC_DEVICE_RINGING);
    }
}

// `threads` threads post `count` requests each: words into one of their `slots` slots, every fifth with an added
// signal, every seventh an addition, every third not rung at once. Returns the number of failed calls.
u64 storm(const gdsync_device_qp *qp, u32 threads, u64 count, u32 slots, u64 remote, u32 rkey, u64 counters, u64 local, u32 lkey) {
    std::atomic<u64> failures(0);
    std::vector<std::thread> all;
    for (u32 thread = 0; thread < threads; thread++) {
        all.emplace_back([=, &failures] {
            const u64 forever = 60000000000ull;
            for (u64 i = 0; i < count; i++) {
                const u64 value = (u64)thread << 32 | i;
                const remote_memory slot = {remote + (thread * slots + i % slots) * 8, rkey};
                const local_memory own = {local + (u64)thread * 16, lkey};
                post_options options;
                options.timeout(forever);
                if (i % 3 == 0) {
                    options.more();
                }
                status result = put_inline(*qp, slot, &value, 8, options);
                if (result == status::ok && i % 5 == 0) {
                    result = put_signal_add(*qp, slot, own, 0, {counters, rkey}, 1, {own.address + 8, lkey}, options);
                }
                if (result == status::ok && i % 7 == 0) {
                    result = fetch_add(*qp, {counters + 8, rkey}, 1, {own.address + 8, lkey}, options);
                }
                if (result == status::ok && i % 11 == 0) {
                    result = poll(*qp);
                }
                if (result != status::ok) {
                    failures.fetch_add(1);
                    return;
                }
            }
            if (quiet(*qp, forever) != status::ok) {
                failures.fetch_add(1);
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    return failures.load();
}

} // extern "C"
