// Verbs from inside a kernel: the threads that compute the data also send it by RDMA.
//
// For nvcc, clang and NVRTC (C++11 or newer, sm_70 or newer); compiled as host C++ it drives the same queues from threads of the
// CPU, as tests without a GPU do.
//
// The host connects a queue pair, attaches it (`gdsync::QueuePair::attach_device` in Rust), and gives kernels the structure
// `gdsync_device_qp` by value or by address. Until it is detached, only kernels post to its send queue and read its send completion
// queue. The CPU keeps the receives. Any number of threads, blocks and kernels of one GPU may use a queue at the same time.
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
// `put`, `put_inline`, `put_signal`, `put_signal_add`, `get`, `send`, `send_inline`, `fetch_add`, `compare_swap`: post a request
// and return; the memory that the request names must not change until it has completed. `quiet` waits until all earlier requests
// have completed; `wait` waits for one request, by the ticket of its post; `poll` checks once and does not wait. Each thread posts
// one request; with `scope::warp` or `scope::block` the threads of a warp or block make the call together, which costs them one
// reservation, one publication and one doorbell. `ring` rings the card for requests that were posted with `more`.
//
// `release` releases sends that the host has prepared, of any number of queue pairs, by one store; `wait_arrivals` waits for
// completions of any number of queues by reading one word (trigger.cuh). Neither touches a queue.
//
// No call waits forever, traps, or continues silently after a failure: each has a time-out, or that of the queue (`stall_ns`), and
// returns its result. After `status::failed` the queue stays failed: `error` and `syndrome` give the reason; the host detaches it
// and makes a new connection.
//
// # Visibility of a card's writes to kernels
//
// Into host memory: the card's writes arrive in PCIe order, and acquire loads at system scope see them in it. `wait` and `quiet`
// after `get` or an atomic make its result visible to the caller. `wait_signal` makes the writes of `put_signal` before the signal
// visible.
//
// Into GPU memory: CUDA's memory model does not cover a card that writes into GPU memory while a kernel runs. The driver's
// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING (`gdsync::cuda::GpuCapabilities::writes_ordering`) says whether a running
// kernel that has seen the signal, or the completion, also sees the data written before it:
// - ALL_DEVICES or OWNER (ALL_DEVICES on an H200; most GPUs since Ampere): a kernel on the GPU that owns the memory sees a card's
//   writes in the order in which they arrived. `wait_signal` (an acquire at system scope) is enough. The order holds for one card:
//   signal and data must come over the same queue pair, and the memory must not be registered for relaxed ordering.
// - NONE: no order holds while the kernel runs. Data and signal may be seen in any order, for any time. Then
//   1. let cards write to host memory, which kernels read over PCIe, with its order; or
//   2. end the kernel at the message: later kernels see all data for which the stream has waited with a flush
//      (`gdsync::Batch::flush`, CU_STREAM_WAIT_VALUE_FLUSH); or
//   3. send a checksum in the message, and compare until it is right: `crc32` reads the bytes again each time. One
//      torn message in 2^32 passes, so a checksum is no protection against an attacker, nor if even that rate is too
//      high.
// - The same holds for the completion of the kernel's own `get`, if the completion queue is in host memory and the data is written
//   to the GPU: entry and data take different paths. On such GPUs (NONE) a running kernel's `get` to GPU memory needs 1 or 3.
//
// The card reads all that a kernel wrote before a post, in the memory of its GPU or in host memory: the post releases at system
// scope the writes of the calling thread (at block and warp scope, of each thread of the group) and those that it has acquired from
// others.
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
#include "device/trigger.cuh"
#include "device/wqe.cuh"

#endif
