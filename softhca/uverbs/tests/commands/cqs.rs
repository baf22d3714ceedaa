//! Completion queues that change.

use super::*;
use crate::uapi::mlx5;
use crate::uapi::queues::{ModifyCq, ResizeCq};
use softhca::card::CLOCK_KHZ;

fn resize(device: &Device, cq_handle: u32, cqe: u32, cqe_size: u16, buf_addr: u64) -> Result<u32, i32> {
    let asked = ResizeCq { response: 0, cq_handle, cqe };
    let ring = mlx5::ResizeCq { buf_addr, cqe_size, reserved0: 0, reserved1: 0 };
    let command = write(command::RESIZE_CQ).input(attr::CORE_IN, &asked).input(attr::UHW_IN, &ring);
    Ok(command.output(attr::CORE_OUT, 8).run(device)?.output::<[u32; 2]>(attr::CORE_OUT)[0])
}

#[test]
fn a_queue_moves_to_a_ring_that_fits() {
    let device = Device::open();
    let cq = create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    let (old, new) = (Rings::new(), Rings::new());
    assert_eq!(resize(&device, cq, 31, 64, 4096), Err(libc::EFAULT));
    assert_eq!(resize(&device, cq, 31, 64, new.ring() + 4), Err(libc::EINVAL));
    assert_eq!(resize(&device, cq, 31, 128, new.ring()), Err(libc::EINVAL), "entries of another size");
    assert_eq!(resize(&device, cq, 0, 64, new.ring()), Err(libc::EINVAL));
    assert_eq!(resize(&device, cq, u32::MAX, 64, new.ring()), Err(libc::EINVAL));
    assert_eq!(resize(&device, 999, 31, 64, new.ring()), Err(libc::EINVAL));
    assert_eq!(resize(&device, cq, 15, 64, 4096), Ok(15), "it has that size");
    assert_eq!(resize(&device, cq, 20, 64, old.ring()), Ok(31));
    assert_eq!(resize(&device, cq, 3, 64, new.ring()), Ok(3));
    assert_eq!(old.0[63] >> 4, 0, "entry 0 was in the first ring");
    assert_eq!(old.0[64 + 63] >> 4, 5, "`MLX5_CQE_RESIZE_CQ`");
    assert_eq!(destroy(&device, object::CQ, method::DESTROY, cq), Ok(()));
    let wide = create_cq(&device, 15, &CreateCq { cqe_size: 128, ..a_cq(Rings::new()) }).unwrap();
    assert_eq!(resize(&device, wide, 31, 128, Rings::new().ring()), Ok(31));
}

#[test]
fn events_are_moderated() {
    let device = Device::open();
    let cq_handle = create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    let modify = |cq_handle, attr_mask| {
        let asked = ModifyCq { cq_handle, attr_mask, cq_count: 8, cq_period: 100, reserved: 0 };
        write(command::MODIFY_CQ | EXTENDED).input(attr::CORE_IN, &asked).run(&device).map(drop)
    };
    assert_eq!(modify(cq_handle, 1), Ok(()));
    assert_eq!(modify(cq_handle, 3), Err(libc::EOPNOTSUPP));
    assert_eq!(modify(999, 1), Err(libc::EINVAL));
    let query = write(command::QUERY_DEVICE | EXTENDED).output(attr::CORE_OUT, 304).run(&device).unwrap();
    let answer: [u8; 304] = query.output(attr::CORE_OUT);
    let word = |at: usize| u64::from_ne_bytes(answer[at..at + 8].try_into().unwrap());
    assert_eq!((word(208), word(216)), (u64::MAX >> 1, u64::from(CLOCK_KHZ)), "times of entries");
    assert_eq!(word(280), 0x0fff_ffff, "the largest count and period");
}
