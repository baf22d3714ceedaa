//! Collectives on CUDA streams, in GPU memory and in host memory. Skipped, with a message, where there is no GPU.

use crate::collectives::{contents, notifications, numbers, reductions, total};
use crate::ranks::each_on_a_thread;
use gdsync::cuda::GpuMemory;
use gdsync::{CudaStream, Stream};
use gdsync_notify::collective::{
    Collective, CollectiveError, Collectives, Element, Operation, Plan, ReductionKernel, combine,
};
use gdsync_notify::{NotifyError, Segment, SegmentMemory, Team, TeamConfig};
use gdsync_test_support::gpu::{Rig, is_sanitized, synchronize};
use gdsync_test_support::pair::LONG;
use gdsync_test_support::skipped;
use std::time::Duration;

struct Rank {
    team: Team,
    segment: Segment,
    plans: Vec<Plan>,
    stream: Stream<CudaStream>,
}

/// Ranks with all these plans, in GPU memory or in host memory.
fn ranks(rig: &Rig, size: u32, on_gpu: impl Fn(u32) -> bool + Sync, kinds: &[Collective]) -> Vec<Rank> {
    let (pd, context) = (&rig.pair.pd, &rig.context);
    each_on_a_thread(size, |bootstrap| {
        let on_gpu = on_gpu(bootstrap.rank());
        let team = Team::new(pd, bootstrap, TeamConfig::default()).unwrap();
        let (len, count) = (total(kinds, size), notifications(kinds, size));
        let segment = match on_gpu {
            true => team.allocate_gpu(context, len, count).unwrap(),
            false => team.allocate(len, count).unwrap(),
        };
        let collectives = Collectives::new(&team.queue(0).unwrap(), &segment).unwrap().reduce_on(context);
        let plans = kinds.iter().map(|what| collectives.plan(*what).unwrap()).collect();
        Rank { team, segment, plans, stream: rig.stream() }
    })
}

/// Runs a round of each plan of all ranks. Returns the wrong outputs.
fn round(ranks: &[Rank]) -> Vec<String> {
    let rounds: Vec<u64> = ranks[0].plans.iter().map(Plan::round).collect();
    for rank in ranks {
        for (plan, round) in rank.plans.iter().zip(&rounds) {
            let (input, _) = contents(plan, rank.team.rank(), *round);
            rank.segment.write(plan.input(*round).start, &input).unwrap();
        }
    }
    // The CPU posts all of it ahead.
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| rank.plans.iter().for_each(|plan| _ = plan.post(&rank.stream).unwrap()));
        }
    });
    let mut wrong = Vec::new();
    for rank in ranks {
        synchronize(&rank.stream);
        for (plan, round) in rank.plans.iter().zip(&rounds) {
            plan.check().unwrap();
            let (_, expected) = contents(plan, rank.team.rank(), *round);
            let at = plan.output(*round);
            let mut found = vec![0; at.len()];
            rank.segment.read(at.start, &mut found).unwrap();
            if found != expected {
                wrong.push(format!("round {round} of {} at rank {}", plan.collective(), rank.team.rank()));
            }
        }
    }
    wrong
}

fn leave(ranks: Vec<Rank>) {
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| {
                rank.team.queue(0).unwrap().flush(LONG).unwrap();
                rank.team.barrier().unwrap();
            });
        }
    });
}

fn kinds() -> Vec<Collective> {
    let of_block = |block| [Collective::AllGather { block }, Collective::AllToAll { block }];
    let moves = [24, 1024, 70_000].into_iter().flat_map(of_block);
    let broadcast = Collective::Broadcast { root: 1, len: 100_000 };
    [Collective::Barrier, broadcast].into_iter().chain(moves).chain(reductions(&[1000, 64, 40_000])).collect()
}

#[test]
fn every_byte_is_right_in_gpu_memory() {
    let Some(rig) = Rig::new("every_byte_is_right_in_gpu_memory") else { return };
    let ranks = ranks(&rig, 4, |_| true, &kinds());
    (0..if is_sanitized() { 3 } else { 20 }).for_each(|_| assert_eq!(round(&ranks), [""; 0]));
    leave(ranks);
}

#[test]
fn every_byte_is_right_in_host_memory_and_in_both() {
    let Some(rig) = Rig::new("every_byte_is_right_in_host_memory_and_in_both") else { return };
    for on_gpu in [|_| false, |rank| rank % 2 == 0] as [fn(u32) -> bool; 2] {
        let ranks = ranks(&rig, 3, on_gpu, &kinds());
        (0..if is_sanitized() { 3 } else { 10 }).for_each(|_| assert_eq!(round(&ranks), [""; 0]));
        leave(ranks);
    }
}

#[test]
fn every_byte_is_right_by_steps_on_a_gpu() {
    const NAME: &str = "every_byte_is_right_by_steps_on_a_gpu";
    let Some(rig) = Rig::new(NAME) else { return };
    // 17 streams wait for each other: those that shared a channel of the GPU would never end.
    let channels = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|count| count.parse().ok());
    if channels.unwrap_or(8) < 32 {
        return skipped(NAME, "17 streams want CUDA_DEVICE_MAX_CONNECTIONS=32");
    }
    let small = reductions(&[64]).into_iter().take(1);
    let kinds: Vec<_> =
        small.chain([Collective::AllToAll { block: 40 }, Collective::AllGather { block: 1000 }]).collect();
    let ranks = ranks(&rig, 17, |_| true, &kinds);
    (0..if is_sanitized() { 1 } else { 6 }).for_each(|_| assert_eq!(round(&ranks), [""; 0]));
    leave(ranks);
}

#[test]
fn kernels_fill_and_use_what_collectives_move() {
    let Some(rig) = Rig::new("kernels_fill_and_use_what_collectives_move") else { return };
    const ROUNDS: u32 = 200;
    // 16 words of each rank go to all; a kernel makes the next input from an output, without the CPU.
    let kinds = [Collective::AllGather { block: 64 }];
    let ranks = ranks(&rig, 2, |_| true, &kinds);
    std::thread::scope(|scope| {
        for rank in &ranks {
            let rig = &rig;
            scope.spawn(move || {
                let [plan] = &rank.plans[..] else { panic!("{:?}", rank.plans) };
                for at in 0..ROUNDS {
                    let round = plan.round();
                    let input = (memory(&rank.segment), plan.input(round).start);
                    // `fill` sets word `i` to the value plus `i`, `add` adds to each.
                    rig.launch_at(&rank.stream, &rig.fill, input, at * 1000 + rank.team.rank());
                    plan.post(&rank.stream).unwrap();
                    let other = plan.output(round).start + 64 * (1 - rank.team.rank() as usize);
                    rig.launch_at(&rank.stream, &rig.add, (memory(&rank.segment), other), 7);
                }
                synchronize(&rank.stream);
                plan.check().unwrap();
            });
        }
    });
    for rank in &ranks {
        let (plan, other) = (&rank.plans[0], 1 - rank.team.rank());
        // The last two rounds are in the two halves.
        for round in [ROUNDS - 2, ROUNDS - 1] {
            let mut found = [0; 64];
            rank.segment.read(plan.output(u64::from(round)).start + 64 * other as usize, &mut found).unwrap();
            let found: Vec<u32> = found.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            let expected: Vec<u32> = (0..16).map(|i| round * 1000 + other + i + 7).collect();
            assert_eq!(found, expected, "round {round} at rank {}", rank.team.rank());
        }
    }
    leave(ranks);
}

/// The GPU memory of a segment.
fn memory(segment: &Segment) -> &GpuMemory {
    match segment.memory() {
        SegmentMemory::Gpu(region) => region.memory(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dead_rank_releases_collectives_of_gpu_streams() {
    let Some(rig) = Rig::new("a_dead_rank_releases_collectives_of_gpu_streams") else { return };
    let kinds = [Collective::AllToAll { block: 64 }, Collective::Barrier];
    // The dying rank has host memory: CUDA frees GPU memory only when the context's streams have passed.
    let mut ranks = ranks(&rig, 3, |rank| rank != 2, &kinds);
    (0..3).for_each(|_| assert_eq!(round(&ranks), [""; 0]));
    let third = ranks.pop();
    for rank in &ranks {
        rank.plans.iter().for_each(|plan| _ = plan.post(&rank.stream).unwrap());
        assert!(!rank.stream.synchronize_timeout(Duration::from_millis(5)).unwrap());
        let oldest = rank.stream.oldest_wait().unwrap();
        assert!(oldest.contains("all-to-all of 64 bytes"), "{oldest}");
    }
    // A rank that leaves is dead to the others.
    drop(third);
    let is_dead = |error: &CollectiveError| {
        matches!(error, CollectiveError::Notify(NotifyError::PeerDead { rank: 2, .. }))
    };
    for rank in &ranks {
        synchronize(&rank.stream);
        for plan in &rank.plans {
            let error = plan.check().unwrap_err();
            assert!(is_dead(&error), "{error}");
        }
    }
}

#[test]
fn a_reduction_needs_its_gpu() {
    let Some(rig) = Rig::new("a_reduction_needs_its_gpu") else { return };
    let kind = reductions(&[64])[0];
    let found = each_on_a_thread(1, |bootstrap| {
        let team = Team::new(&rig.pair.pd, bootstrap, TeamConfig::default()).unwrap();
        let segment = team.allocate(kind.bytes(1), kind.notifications(1)).unwrap();
        let plan = Collectives::new(&team.queue(0).unwrap(), &segment).unwrap().plan(kind).unwrap();
        let error = plan.post(&rig.stream()).unwrap_err();
        (plan.round(), matches!(error, CollectiveError::NoKernel), error.to_string())
    });
    assert!(found[0].0 == 0 && found[0].1, "{found:?}");
}

#[test]
fn a_kernel_reduces_as_the_cpu_does() {
    let Some(rig) = Rig::new("a_kernel_reduces_as_the_cpu_does") else { return };
    const BYTES: usize = 4000;
    let memory = || GpuMemory::allocate(&rig.context, BYTES + 8).unwrap();
    let (into, other, copied, stream) = (memory(), memory(), memory(), rig.stream());
    let all =
        Element::ALL.into_iter().flat_map(|element| Operation::ALL.map(|operation| (element, operation)));
    for (element, operation) in all.filter(|(element, operation)| operation.is_defined_for(*element)) {
        let (one, two) = (numbers(1, 2, 3, BYTES, element), numbers(4, 5, 6, BYTES, element));
        let (mut expected, mut found) = (one.clone(), vec![0; BYTES + 8]);
        combine(element, operation, &mut expected, &two);
        let end = [0xee; 8];
        into.write(0, &[&one[..], &end].concat()).unwrap();
        other.write(0, &[&two[..], &end].concat()).unwrap();
        let kernel = ReductionKernel::new(&rig.context, element, operation).unwrap();
        // SAFETY: memory of that size, which stays until the stream is idle, below.
        unsafe {
            kernel.reduce(&stream, into.address(), other.address(), BYTES).unwrap();
            kernel.copy(&stream, copied.address(), into.address(), BYTES).unwrap();
        }
        stream.synchronize().unwrap();
        for memory in [&into, &copied] {
            memory.read(0, &mut found).unwrap();
            assert!(found[..BYTES] == expected, "{operation} of {element}");
        }
        into.read(BYTES, &mut found[..8]).unwrap();
        assert_eq!(found[..8], end, "behind the last number");
    }
    let undefined = ReductionKernel::new(&rig.context, Element::F64, Operation::LogicalOr).unwrap_err();
    assert!(matches!(undefined, CollectiveError::Undefined { .. }), "{undefined}");
}

#[test]
fn a_kernel_gives_the_bits_of_the_cpu_for_zeros_and_nans() {
    let Some(rig) = Rig::new("a_kernel_gives_the_bits_of_the_cpu_for_zeros_and_nans") else { return };
    let special = |element| match element {
        Element::F32 => {
            [0u32, 1 << 31, 1, 0x3f80_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_4321, 0xffc0_1234, 0xff80_0001]
                .map(|bits| bits.to_ne_bytes().to_vec())
        }
        _ => [
            0u64,
            1 << 63,
            1,
            0x3ff << 52,
            0x7ff << 52,
            0xfff << 52,
            0x7ff8 << 48 | 3,
            0xfff8 << 48 | 5,
            0xfff << 52 | 1,
        ]
        .map(|bits| bits.to_ne_bytes().to_vec()),
    };
    let stream = rig.stream();
    for element in [Element::F32, Element::F64] {
        let all = special(element);
        let ones: Vec<u8> = all.iter().flat_map(|one| one.repeat(all.len())).collect();
        let others = all.concat().repeat(all.len());
        for operation in [Operation::Sum, Operation::Product, Operation::Min, Operation::Max] {
            let kernel = ReductionKernel::new(&rig.context, element, operation).unwrap();
            for (one, other) in [(&ones, &others), (&others, &ones)] {
                let (mut expected, mut found) = (one.clone(), vec![0; one.len()]);
                combine(element, operation, &mut expected, other);
                let memory = |bytes: &[u8]| {
                    let memory = GpuMemory::allocate(&rig.context, bytes.len()).unwrap();
                    memory.write(0, bytes).unwrap();
                    memory
                };
                let (into, from) = (memory(one), memory(other));
                // SAFETY: memory of that size, which stays until the stream is idle, below.
                unsafe { kernel.reduce(&stream, into.address(), from.address(), one.len()) }.unwrap();
                stream.synchronize().unwrap();
                into.read(0, &mut found).unwrap();
                assert_eq!(found, expected, "{operation} of {element}");
            }
        }
    }
}
