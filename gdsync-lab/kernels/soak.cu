// The kernel of `gdsync soak --gpu`: it posts a list of requests, and waits until all have completed.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

static const u64 LONG = 20000000000ull;

// A message to send, or a word to put.
struct request {
    // The local memory with the message, or the remote word.
    u64 address;
    // The word to put.
    u64 value;
    // Key of the address.
    u32 key;
    // Length of the message.
    u32 bytes;
    // 0: a message. 1: a word.
    u32 is_word;
    u32 unused;
};

static_assert(sizeof(request) == 32, "as the command's");

// Words of pinned host memory: the result, the error of the queue pair, and, once both are there, the number of the round.
struct outcome {
    u64 status;
    u64 error;
    u64 round;
};

// One thread.
extern "C" __global__ void post_requests(gdsync_device_qp qp, const request *list, u64 count, volatile outcome *out, u64 round) {
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 i = 0; i < count && result == status::ok; i++) {
        const request one = list[i];
        post_options options;
        options.timeout(LONG);
        if (i + 1 < count) {
            options.more();
        }
        if (one.is_word) {
            result = put_inline(qp, {one.address, one.key}, &one.value, 8, options);
        } else {
            result = send(qp, {one.address, one.key}, one.bytes, options);
        }
    }
    if (count > 0 && result == status::ok) {
        result = quiet(qp, LONG);
    }
    out->status = (u64)result;
    out->error = count > 0 ? error(qp) : 0;
    __threadfence_system();
    out->round = round;
}
