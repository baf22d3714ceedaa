//! Commands as libibverbs sends them, through the hooks, to real cards.

use crate::hooks;
use crate::uapi::ioctl::{ATTR_MANDATORY, Attr, Header, RDMA_VERBS_IOCTL, attr, method, object};
use crate::uapi::mlx5::{AllocUcontext, AllocUcontextResp, CONTEXT_DEVX, CreateCq, CreateQp};
use crate::uapi::queues::{ModifyQp, QpCap, QueryQp, QueryQpResp};
use crate::uapi::verbs::{EXTENDED, QueryDeviceResp, RegMr, RegMrResp, command};
use gdsync_sys::verbs as ibv;
use parking_lot::{RwLock, RwLockReadGuard};
use std::io;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod checks;
mod connections;
mod cqs;
mod dc;
mod files;
mod mcast;
mod memory;
mod netlink;
mod objects;
mod processes;
mod regions;
mod srqs;
mod xrc;

/// All tests of this process share a card. A test that exhausts it takes the write lock.
static CARD: RwLock<()> = RwLock::new(());

struct Device(i32, #[expect(dead_code, reason = "held, not used")] Option<RwLockReadGuard<'static, ()>>);

impl Device {
    fn open() -> Self {
        Device(Device::descriptor(), Some(CARD.read_recursive()))
    }

    /// A device whose program has not asked for its context.
    fn plain() -> Self {
        Device(Device::file(), Some(CARD.read_recursive()))
    }

    fn begin(&self, flags: u32) {
        let asked = AllocUcontext { flags, max_cqe_version: 1, ..AllocUcontext::new_zeroed() };
        let command = new(object::DEVICE, method::GET_CONTEXT).input(attr::UHW_IN, &asked);
        command.output(attr::UHW_OUT, size_of::<AllocUcontextResp>()).run(self).unwrap();
    }

    fn descriptor() -> i32 {
        let device = std::mem::ManuallyDrop::new(Device(Device::file(), None));
        device.begin(CONTEXT_DEVX);
        device.0
    }

    fn file() -> i32 {
        // SAFETY: the path is a C string.
        let fd =
            unsafe { hooks::open(c"/dev/infiniband/uverbs0".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        fd
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        assert_eq!(hooks::close(self.0), 0);
    }
}

struct Command {
    object: u16,
    method: u16,
    attrs: Vec<Attr>,
    /// The memory that attributes point to. A box keeps its address when the vector moves.
    memory: Vec<Box<[u8]>>,
}

fn new(object: u16, method: u16) -> Command {
    Command { object, method, attrs: Vec::new(), memory: Vec::new() }
}

fn write(number: u32) -> Command {
    new(object::DEVICE, method::INVOKE_WRITE).constant(attr::WRITE_CMD, number)
}

impl Command {
    fn attribute(mut self, attr_id: u16, len: u16, data: u64) -> Self {
        self.attrs.push(Attr { attr_id, len, flags: ATTR_MANDATORY, attr_data: 0, data });
        self
    }

    /// Removes an attribute, to leave it out or to give it another value.
    fn without(mut self, id: u16) -> Self {
        self.attrs.retain(|attr| attr.attr_id != id);
        self
    }

    fn number(self, id: u16, value: u32) -> Self {
        self.attribute(id, 4, value.into())
    }

    /// A constant, which has 8 bytes whatever its type is.
    fn constant(self, id: u16, value: u32) -> Self {
        self.attribute(id, 8, value.into())
    }

    /// A handle, or room for a new one.
    fn handle(self, id: u16, handle: u32) -> Self {
        self.attribute(id, 0, handle.into())
    }

    fn input<T: IntoBytes + Immutable + ?Sized>(mut self, id: u16, value: &T) -> Self {
        let mut bytes: Box<[u8]> = value.as_bytes().into();
        let (data, len) = (bytes.as_mut_ptr() as u64, bytes.len() as u16);
        self.memory.push(bytes);
        self.attribute(id, len, data)
    }

    fn output(mut self, id: u16, len: usize) -> Self {
        let mut bytes: Box<[u8]> = vec![0xff; len].into();
        let data = bytes.as_mut_ptr() as u64;
        self.memory.push(bytes);
        self.attribute(id, len as u16, data)
    }

    /// Sends the command. Returns the answer, or an errno.
    fn run(self, device: &Device) -> Result<Answer, i32> {
        self.run_as(device, |_| {})
    }

    /// As [`Command::run`], with another header.
    fn run_as(self, device: &Device, alter: impl FnOnce(&mut Header)) -> Result<Answer, i32> {
        let mut header = Header {
            length: (24 + 16 * self.attrs.len()) as u16,
            object_id: self.object,
            method_id: self.method,
            num_attrs: self.attrs.len() as u16,
            reserved1: 0,
            driver_id: 1,
            reserved2: 0,
        };
        alter(&mut header);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(self.attrs.iter().flat_map(|attr| attr.as_bytes().to_vec()));
        // SAFETY: `bytes` is a complete command, and `self.memory` keeps the targets of its attributes.
        if unsafe { hooks::ioctl(device.0, RDMA_VERBS_IOCTL, bytes.as_mut_ptr().cast()) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap());
        }
        let attrs = bytes[24..].chunks(16).map(|bytes| Attr::read_from_bytes(bytes).unwrap());
        Ok(Answer { attrs: attrs.collect(), _memory: self.memory })
    }
}

struct Answer {
    attrs: Vec<Attr>,
    _memory: Vec<Box<[u8]>>,
}

impl Answer {
    fn find(&self, id: u16) -> Attr {
        *self.attrs.iter().find(|attr| attr.attr_id == id).unwrap()
    }

    fn created(&self, id: u16) -> u32 {
        self.find(id).data as u32
    }

    fn output<T: FromBytes>(&self, id: u16) -> T {
        let attr = self.find(id);
        assert_eq!(usize::from(attr.len), size_of::<T>());
        // SAFETY: the command passed this memory for the answer, and `_memory` keeps it.
        let bytes = unsafe { std::slice::from_raw_parts(attr.data as *const u8, attr.len.into()) };
        T::read_from_bytes(bytes).unwrap()
    }
}

/// The memory of queues, aligned to a page.
#[repr(C, align(4096))]
struct Rings([u8; 4096], [u64; 8]);

impl Rings {
    /// Leaked: the card writes to it until the end of the test closes the context.
    fn new() -> &'static mut Self {
        Box::leak(Box::new(Rings([0; 4096], [0; 8])))
    }

    fn ring(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }

    fn record(&mut self) -> u64 {
        self.1.as_mut_ptr() as u64
    }
}

fn alloc_pd(device: &Device) -> Result<u32, i32> {
    let answer = write(command::ALLOC_PD).output(attr::CORE_OUT, 4).output(attr::UHW_OUT, 4).run(device)?;
    assert_ne!(answer.output::<u32>(attr::UHW_OUT), 0, "the domain's number");
    Ok(answer.output(attr::CORE_OUT))
}

fn destroy(device: &Device, object: u16, method: u16, handle: u32) -> Result<(), i32> {
    let command = new(object, method).handle(attr::HANDLE, handle);
    let command = match object {
        object::CQ => command.output(attr::DESTROY_RESP, 8),
        object::QP | object::SRQ => command.output(attr::DESTROY_RESP, 4),
        _ => command,
    };
    command.run(device).map(drop)
}

fn reg_mr(device: &Device, pd_handle: u32, start: u64, length: u64, hca_va: u64) -> Result<RegMrResp, i32> {
    let asked = RegMr { start, length, hca_va, pd_handle, access_flags: 7, ..RegMr::new_zeroed() };
    let command = write(command::REG_MR).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 12);
    Ok(command.run(device)?.output(attr::CORE_OUT))
}

fn create_cq(device: &Device, cqe: u32, asked: &CreateCq) -> Result<u32, i32> {
    create_cq_on(device, 0, cqe, asked)
}

fn create_cq_on(device: &Device, vector: u32, cqe: u32, asked: &CreateCq) -> Result<u32, i32> {
    let command = new(object::CQ, method::CREATE)
        .handle(attr::HANDLE, 0)
        .number(attr::CQ_CQE, cqe)
        .attribute(attr::CQ_USER_HANDLE, 8, 0x1234)
        .number(attr::CQ_COMP_VECTOR, vector)
        .output(attr::CQ_RESP_CQE, 4)
        .input(attr::UHW_IN, asked)
        .output(attr::UHW_OUT, 8);
    let answer = command.run(device)?;
    assert!(answer.output::<u32>(attr::CQ_RESP_CQE) >= cqe);
    Ok(answer.created(attr::HANDLE))
}

fn a_cq(rings: &mut Rings) -> CreateCq {
    CreateCq { buf_addr: rings.ring(), db_addr: rings.record(), cqe_size: 64, ..CreateCq::new_zeroed() }
}

/// Returns the handle and the number of the page.
fn alloc_uar(device: &Device) -> (u32, u32) {
    let command = new(object::UAR, method::UAR_ALLOC)
        .handle(attr::UAR_HANDLE, 0)
        .constant(attr::UAR_TYPE, 0)
        .output(attr::UAR_MMAP_OFFSET, 8)
        .output(attr::UAR_MMAP_LENGTH, 4)
        .output(attr::UAR_PAGE_ID, 4);
    let answer = command.run(device).unwrap();
    let (offset, length): (u64, u32) =
        (answer.output(attr::UAR_MMAP_OFFSET), answer.output(attr::UAR_MMAP_LENGTH));
    let map = |len| {
        let (write, shared) = (libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { hooks::mmap(std::ptr::null_mut(), len, write, shared, device.0, offset as i64) }
    };
    assert_eq!(map(8192), libc::MAP_FAILED, "the next page is another's");
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    let page = map(4096);
    assert!(length == 4096 && page != libc::MAP_FAILED, "a program can map it");
    // SAFETY: `map` made the mapping, and nothing uses it.
    unsafe { libc::munmap(page, 4096) };
    (answer.created(attr::UAR_HANDLE), answer.output(attr::UAR_PAGE_ID))
}

struct Parts {
    pd: u32,
    cq: u32,
    page: u32,
    uar: u32,
    rings: &'static mut Rings,
}

fn parts(device: &Device) -> Parts {
    let pd = alloc_pd(device).unwrap();
    let cq = create_cq(device, 15, &a_cq(Rings::new())).unwrap();
    let (uar, page) = alloc_uar(device);
    Parts { pd, cq, page, uar, rings: Rings::new() }
}

fn a_qp(parts: &mut Parts) -> CreateQp {
    CreateQp {
        buf_addr: parts.rings.ring(),
        db_addr: parts.rings.record(),
        sq_wqe_count: 16,
        rq_wqe_count: 16,
        rq_wqe_shift: 4,
        bfreg_index: parts.page,
        ..CreateQp::new_zeroed()
    }
}

fn create_qp(device: &Device, parts: &Parts, kind: u32, asked: &CreateQp) -> Result<u32, i32> {
    create_qp_with(device, parts, kind, asked, |command| command)
}

/// As [`create_qp`], with attributes added by `more`.
fn create_qp_with(
    device: &Device,
    parts: &Parts,
    kind: u32,
    asked: &CreateQp,
    more: impl FnOnce(Command) -> Command,
) -> Result<u32, i32> {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 10, max_recv_sge: 1, ..QpCap::new_zeroed() };
    let command = new(object::QP, method::CREATE)
        .handle(attr::HANDLE, 0)
        .handle(attr::QP_PD, parts.pd)
        .handle(attr::QP_SEND_CQ, parts.cq)
        .handle(attr::QP_RECV_CQ, parts.cq)
        .attribute(attr::QP_USER_HANDLE, 8, 0x5678)
        .input(attr::QP_CAP, &cap)
        .constant(attr::QP_TYPE, kind)
        .number(attr::QP_FLAGS, 1 << 12)
        .output(attr::QP_RESP_CAP, 20)
        .output(attr::QP_RESP_NUM, 4)
        .input(attr::UHW_IN, asked)
        .output(attr::UHW_OUT, 40);
    let answer = more(command).run(device)?;
    assert_ne!(answer.output::<u32>(attr::QP_RESP_NUM), 0);
    assert_eq!(answer.output::<QpCap>(attr::QP_RESP_CAP).max_recv_wr, asked.rq_wqe_count);
    Ok(answer.created(attr::HANDLE))
}
