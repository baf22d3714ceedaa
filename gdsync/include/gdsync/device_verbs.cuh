// Verbs from inside a kernel: RDMA by the threads that have computed what is to be sent.
//
// For nvcc, clang and NVRTC (C++11 or newer, sm_70 or newer); compiled as host C++ it drives the same queues from threads of the
// CPU, which is how it is tested without a GPU.
//
// The host connects a queue pair, hands it over (`gdsync::QueuePair::hand_to_device` in Rust), and gives kernels the structure
// `gdsync_device_qp` by value or by address. From then on, and until it is taken back, kernels alone post to its send queue and
// read its send completion queue. Receives stay with the CPU. Any number of threads, blocks and kernels of one GPU may use a queue
// at the same time.
//
//     __global__ void halo(gdsync_device_qp qp, const double *row, ...) {
//         ... compute row ...
//         __syncthreads();
//         if (threadIdx.x == 0) {
//             gdsync::put_signal(qp, {remote_row, rkey}, {(gdsync::u64)row, lkey}, bytes, {remote_flag, rkey}, step);
//             if (gdsync::quiet(qp, 1000000000) != gdsync::status::ok) { *failed = gdsync::error(qp); }
//         }
//     }
//
// # Calls
//
// `put`, `put_inline`, `put_signal`, `put_signal_add`, `get`, `send`, `send_inline`, `fetch_add`, `compare_swap`: post a request and
// return; the memory that they name must stay as it is until it has completed. `quiet` waits until everything has that was posted
// before; `wait` for one request, by the ticket that its post gave; `poll` looks once, and waits for nothing. Every kind of request
// is one of the calling thread's own; with `scope::warp` or `scope::block` the threads of a warp or block make the call together, which
// costs them one reservation, one publication and one doorbell. `ring` tells the card of what was posted with `more`.
//
// No call waits for ever, traps, or goes on silently after a failure: each has a time-out, or that of the queue (`stall_ns`), and
// says how it ended. After `status::failed` the queue is done with: `error` and `syndrome` say why; the host takes it back and
// begins anew.
//
// # What a kernel may see of what a card writes
//
// Into host memory: the card's writes arrive in the order that PCIe gives them, and acquire loads at system scope see them so. `wait`
// and `quiet` after `get` or an atomic make its result visible to the caller. `wait_signal` makes visible what `put_signal` wrote
// before the signal.
//
// Into GPU memory: the memory model of CUDA does not speak of a card that writes into GPU memory while a kernel runs. Whether
// a running kernel that has seen the signal, or the completion, sees the data before it, the driver says by
// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING (`gdsync::cuda::GpuCapabilities::writes_ordering`):
// - ALL_DEVICES or OWNER (an H200 says ALL_DEVICES; most GPUs since Ampere): a kernel on the GPU that owns the memory sees a card's
//   writes in the order in which they arrived. Nothing is to be called but `wait_signal` (an acquire at system scope). The order
//   is that of one card: signal and data come over the same queue pair, and the memory must not be registered for relaxed ordering.
// - NONE: no order holds while the kernel runs. Data and signal may be seen in any order, for any time. Then
//   1. let cards write to host memory, which kernels read over PCIe: all that is said of host memory holds; or
//   2. end the kernel at the message: what a stream waits for, with a flush (`gdsync::Batch::flush`,
//      CU_STREAM_WAIT_VALUE_FLUSH), is seen whole by kernels behind it; or
//   3. send a checksum in the message, and look until it is right: `crc32` reads the bytes anew each time. 1 in 2^32 torn messages
//      passes, so it is no protection against an enemy, and none for messages that must not be wrong even so rarely.
// - The completion of one's own `get` is no exception where the completion queue is in host memory and the data goes to the GPU:
//   the entry and the data take different ways. On such GPUs (NONE) `get` to GPU memory from a running kernel needs 1 or 3.
//
// What a kernel writes before a post, in its own GPU's memory or in host memory, the card reads whole: the post releases at system
// scope what the calling thread (at block and warp scope, each thread of the group) has written or has acquired from others.
#ifndef GDSYNC_DEVICE_VERBS_CUH
#define GDSYNC_DEVICE_VERBS_CUH

#include "device/atomics.cuh"
#include "device/completion.cuh"
#include "device/crc32.cuh"
#include "device/group.cuh"
#include "device/notify.cuh"
#include "device/ops.cuh"
#include "device/platform.cuh"
#include "device/post.cuh"
#include "device/queue.cuh"
#include "device/wqe.cuh"

#endif
