//! Graphs that release sends by triggers: their nodes are kernels, copies, memsets and batches, and launches update
//! only the batches. Reported as skipped without a GPU.

use crate::gpu_trigger::{Bench, PEERS, PLACES, grid, launch, place, rounds, said};
use gdsync::batch::BatchShape;
use gdsync::cuda;
use gdsync::cudarc::driver::sys;
use gdsync::graph::CudaGraph;
use gdsync::memop::Word64;
use gdsync::{Batch, CudaStream, PinnedMemory, Trigger, WorkRequest};
use gdsync_test_support::gpu::{is_sanitized, synchronize};
use gdsync_test_support::pair::poll;
use gdsync_test_support::skipped;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Launches between two checks for arrivals.
const BURST: u64 = 16;

/// Launches the graph once for each message from 1 to `most`, prepared ahead, and verifies all.
fn launch_for_each(bench: &Bench, graph: &mut CudaGraph, most: u64) {
    let mut first = 1;
    while first <= most {
        (first..first + BURST).for_each(|message| bench.prepare(message));
        for _ in 0..BURST {
            bench.stream.launch(graph, []).unwrap();
        }
        synchronize(&bench.stream);
        bench.arrived(first..first + BURST);
        first += BURST;
    }
}

#[test]
fn a_graph_that_makes_its_tickets_is_launched_without_updates() {
    for (in_gpu, most) in [(false, 10_000), (true, 1000)] {
        let test = "a_graph_that_makes_its_tickets_is_launched_without_updates";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let (kernel, counter, trigger) =
            (bench.kernel("release_next"), bench.counter(), bench.trigger_data());
        let (messages, ticket) = (bench.messages, counter.address());
        // Loaded before it is recorded.
        let (nothing, nowhere, scratch) =
            (bench.no_trigger(), bench.no_messages(), bench.scratch.address() + 8);
        launch!(bench.stream, kernel, grid(1, 1), nothing, scratch, nowhere);
        synchronize(&bench.stream);
        let graph = bench.stream.capture(|capture| {
            launch!(capture.stream(), kernel, grid(1, 1), trigger, ticket, messages);
            Ok(())
        });
        launch_for_each(&bench, &mut graph.unwrap(), rounds(most));
    }
}

#[test]
fn a_copy_releases_what_a_kernel_has_counted() {
    for in_gpu in [false, true] {
        let test = "a_copy_releases_what_a_kernel_has_counted";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let (kernel, counter, trigger) =
            (bench.kernel("prepare_next"), bench.counter(), bench.trigger_data());
        let (messages, ticket, copied) = (bench.messages, counter.address(), bench.counter());
        let from = copied.address();
        let (nowhere, scratch) = (bench.no_messages(), bench.scratch.address());
        let other = scratch + 8;
        launch!(bench.stream, kernel, grid(1, 1), scratch, other, nowhere);
        synchronize(&bench.stream);
        let graph = bench.stream.capture(|capture| {
            launch!(capture.stream(), kernel, grid(1, 1), from, ticket, messages);
            // SAFETY: 8 bytes of memory that lives until the last launch has ended.
            unsafe { sys::cuMemcpyAsync(trigger.word, from, 8, capture.stream().raw()) }.result()?;
            Ok(())
        });
        launch_for_each(&bench, &mut graph.unwrap(), rounds(1000));
    }
}

#[test]
fn memsets_release_tickets_that_the_graph_holds() {
    for in_gpu in [false, true] {
        let test = "memsets_release_tickets_that_the_graph_holds";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let word = bench.trigger_data().word;
        for first in (0..5).map(|graph| 1 + graph * BURST) {
            let messages = first..first + BURST;
            messages.clone().for_each(|message| bench.prepare(message));
            messages.clone().for_each(|message| bench.write(message));
            let graph = bench.stream.capture(|capture| {
                for ticket in messages.clone() {
                    // The second half of the word, which is big endian: the lower half of the number.
                    let low = (Trigger::word_of(ticket) >> 32) as u32;
                    // SAFETY: 4 bytes of the word, which lives until the launch has ended.
                    unsafe { sys::cuMemsetD32Async(word + 4, low, 1, capture.stream().raw()) }.result()?;
                }
                Ok(())
            });
            bench.stream.launch(&mut graph.unwrap(), []).unwrap();
            synchronize(&bench.stream);
            bench.arrived(messages);
        }
    }
}

#[test]
fn a_batch_node_takes_triggered_sends() {
    for in_gpu in [false, true] {
        let Some(bench) = Bench::new("a_batch_node_takes_triggered_sends", in_gpu) else { return };
        let shape = BatchShape::new().write_value64().write_value64().wait();
        let mut graph = bench.stream.capture(|capture| Ok(capture.batch(&shape)?)).unwrap();
        for message in (1..=rounds(400)).step_by(2) {
            bench.write(message);
            bench.write(message + 1);
            let batch = Batch::new().send(bench.send(message)).send(bench.send(message + 1));
            let last = &bench.pairs[(message + 1) as usize % PEERS].0;
            let batch = batch.wait(last.send_cq().prepare_wait().unwrap());
            assert_eq!(BatchShape::of(&batch), shape);
            bench.stream.launch(&mut graph, [batch]).unwrap();
            synchronize(&bench.stream);
            bench.arrived(message..message + 2);
        }
    }
}

/// A message between two sides: the ticket that releases it is its number.
fn prepare_send(bench: &Bench, message: u64) {
    let (left, right) = &bench.pairs[message as usize % PEERS];
    right.post_recv(&[bench.target.slice(place(message)).unwrap()], message).unwrap();
    let slices = [bench.source.slice(place(message)).unwrap()];
    let send = left.prepare(WorkRequest::send(&slices).wr_id(message)).unwrap();
    assert_eq!(send.into_ticket().unwrap(), message);
}

/// The graph that a stream is being captured into.
fn captured_graph(stream: &CudaStream) -> sys::CUgraph {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, null_mut());
    // SAFETY: valid places, or null for values that are not needed; the stream is alive.
    unsafe {
        sys::cuStreamGetCaptureInfo_v2(stream.raw(), &mut status, &mut id, &mut graph, null_mut(), null_mut())
    }
    .result()
    .unwrap();
    graph
}

/// Adds a WHILE node to a graph, which runs at least once. Returns the handle of its condition, and its body.
///
/// # Safety
/// The graph is alive, and has no other node. The context is current.
unsafe fn while_node(
    graph: sys::CUgraph,
    context: sys::CUcontext,
) -> (sys::CUgraphConditionalHandle, sys::CUgraph) {
    let mut handle = 0;
    let at_launch = sys::CU_GRAPH_COND_ASSIGN_DEFAULT;
    // SAFETY: a valid place; the rest is the caller's.
    unsafe { sys::cuGraphConditionalHandleCreate(&mut handle, graph, context, 1, at_launch) }
        .result()
        .unwrap();
    // SAFETY: integers, pointers and enumerations, for which 0 is valid.
    let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
        size: 1,
        phGraph_out: null_mut(),
        ctx: context,
    };
    let mut node = null_mut();
    // SAFETY: valid places, no dependencies; the rest is the caller's.
    unsafe { sys::cuGraphAddNode(&mut node, graph, null(), 0, &mut params) }.result().unwrap();
    // SAFETY: the node has one body, which the driver has put there.
    (handle, unsafe { *params.__bindgen_anon_1.conditional.phGraph_out })
}

#[test]
fn the_body_of_a_while_node_sends_as_often_as_its_kernel_decides() {
    let test = "the_body_of_a_while_node_sends_as_often_as_its_kernel_decides";
    match cuda::driver_version() {
        Ok(version) if version < 12_040 => return skipped(test, "the driver is older than CUDA 12.4"),
        _ if is_sanitized() => return skipped(test, "a sanitizer does not look into conditional nodes"),
        _ => {}
    }
    let Some(bench) = Bench::new(test, false) else { return };
    let Some(module) = bench.rig.compile(test, "conditional.cu") else { return };
    let kernel = module.load_function("send_while").unwrap();
    let (trigger, counter) = (bench.trigger_data(), bench.counter());
    let pinned = PinnedMemory::allocate(8).unwrap();
    let end = Word64::new(&pinned, 0).unwrap();
    let (ticket, end_at) = (counter.address(), cuda::pin(&bench.rig.context, &pinned).unwrap());
    let (source, places) = (cuda::pin(&bench.rig.context, bench.source.memory()).unwrap(), PLACES);
    // Loaded before it becomes part of a graph; without a handle it does nothing.
    launch!(bench.stream, kernel, grid(1, 1), 0u64, trigger, ticket, end_at, source, places);
    synchronize(&bench.stream);

    bench.rig.context.bind_to_thread().unwrap();
    let recorded = bench.stream.capture(|capture| {
        let graph = captured_graph(capture.stream());
        // SAFETY: the graph is alive while it is captured, and empty; the context was bound just now.
        let (handle, body) = unsafe { while_node(graph, bench.rig.context.cu_ctx()) };
        let mut params = [
            (&raw const handle).cast::<c_void>().cast_mut(),
            (&raw const trigger).cast::<c_void>().cast_mut(),
            (&raw const ticket).cast::<c_void>().cast_mut(),
            (&raw const end_at).cast::<c_void>().cast_mut(),
            (&raw const source).cast::<c_void>().cast_mut(),
            (&raw const places).cast::<c_void>().cast_mut(),
        ];
        let node_params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: kernel.cu_function(),
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: params.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let mut node = null_mut();
        // SAFETY: the body is alive with its graph; the driver copies the parameters, which match the kernel's.
        unsafe { sys::cuGraphAddKernelNode_v2(&mut node, body, null(), 0, &node_params) }.result().unwrap();
        Ok(())
    });
    let mut graph = recorded.unwrap();

    let (mut prepared, mut sent, mut launches) = (0u64, 0u64, 0u64);
    while sent < 1000 {
        while prepared < sent + 64 {
            prepared += 1;
            prepare_send(&bench, prepared);
        }
        end.store(prepared);
        bench.stream.launch(&mut graph, []).unwrap();
        synchronize(&bench.stream);
        launches += 1;
        let mut bytes = [0; 8];
        counter.read(0, &mut bytes).unwrap();
        let now = u64::from_ne_bytes(bytes);
        // The kernel has sent the requested number, which the CPU did not know.
        let decided = (sent + 1..prepared).find(|message| said(*message) >> 62 == 0).unwrap_or(prepared);
        assert_eq!(now, decided);
        for message in sent + 1..=now {
            let receipt = poll(&bench.pairs[message as usize % PEERS].1.recv_cq());
            assert_eq!((receipt.wr_id, receipt.status), (message, Ok(())));
            bench.arrived(message..message + 1);
        }
        // No further message has arrived.
        assert!(bench.pairs.iter().all(|(_, right)| right.recv_cq().poll().unwrap().is_none()));
        sent = now;
    }
    assert!(launches < sent, "{launches} launches sent {sent} messages");
    // Prepared work that was never released.
    bench.trigger.release(prepared).unwrap();
    for message in sent + 1..=prepared {
        assert_eq!(poll(&bench.pairs[message as usize % PEERS].0.send_cq()).wr_id, message);
    }
}
