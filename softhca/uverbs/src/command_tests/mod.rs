//! Commands as libibverbs sends them, through the hooks, to real cards.

use crate::hooks;
use crate::uapi::ioctl::{ATTR_MANDATORY, Attr, Header, RDMA_VERBS_IOCTL, attr, method, object};
use crate::uapi::mlx5::{AllocUcontext, AllocUcontextResp, CreateCq, CreateQp};
use crate::uapi::queues::{ModifyQp, QpCap, QueryQp, QueryQpResp};
use crate::uapi::verbs::{EXTENDED, QueryDeviceResp, RegMr, RegMrResp, command};
use gdsync_sys::verbs as ibv;
use parking_lot::{RwLock, RwLockReadGuard};
use std::io;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod connections;
mod cqs;
mod dc;
mod files;
mod memory;
mod netlink;
mod processes;
mod regions;
mod srqs;
mod xrc;

/// All tests of this process share a card. A test that exhausts it takes the write lock.
static CARD: RwLock<()> = RwLock::new(());

/// An open device.
struct Device(i32, #[expect(dead_code, reason = "held, not used")] Option<RwLockReadGuard<'static, ()>>);

impl Device {
    fn open() -> Self {
        Device(Device::descriptor(), Some(CARD.read_recursive()))
    }

    fn descriptor() -> i32 {
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

/// A command under construction.
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
    new(object::DEVICE, method::INVOKE_WRITE).number(attr::WRITE_CMD, number)
}

impl Command {
    fn attribute(mut self, attr_id: u16, len: u16, data: u64) -> Self {
        self.attrs.push(Attr { attr_id, len, flags: ATTR_MANDATORY, attr_data: 0, data });
        self
    }

    fn number(self, id: u16, value: u32) -> Self {
        self.attribute(id, 4, value.into())
    }

    /// A handle, or room for a new one.
    fn handle(self, id: u16, handle: u32) -> Self {
        self.attribute(id, 0, handle.into())
    }

    fn input<T: IntoBytes + Immutable>(mut self, id: u16, value: &T) -> Self {
        let mut bytes: Box<[u8]> = value.as_bytes().into();
        let data = bytes.as_mut_ptr() as u64;
        self.memory.push(bytes);
        self.attribute(id, size_of::<T>() as u16, data)
    }

    fn output(mut self, id: u16, len: usize) -> Self {
        let mut bytes: Box<[u8]> = vec![0xff; len].into();
        let data = bytes.as_mut_ptr() as u64;
        self.memory.push(bytes);
        self.attribute(id, len as u16, data)
    }

    /// Sends the command. Returns the answer, or an errno.
    fn run(self, device: &Device) -> Result<Answer, i32> {
        let header = Header {
            length: (24 + 16 * self.attrs.len()) as u16,
            object_id: self.object,
            method_id: self.method,
            num_attrs: self.attrs.len() as u16,
            reserved1: 0,
            driver_id: 1,
            reserved2: 0,
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(self.attrs.iter().flat_map(|attr| attr.as_bytes().to_vec()));
        // SAFETY: `bytes` is a complete command, and `self.memory` keeps what its attributes point
        // to.
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
    new(object, method).handle(attr::HANDLE, handle).run(device).map(|_| ())
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
        .number(attr::UAR_TYPE, 0)
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

/// The objects that a queue pair needs.
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

/// As [`create_qp`], with attributes that `more` adds.
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
        .number(attr::QP_TYPE, kind)
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

#[test]
fn a_context_says_what_libmlx5_must_know() {
    let device = Device::open();
    let get = |max_cqe_version| {
        let asked = AllocUcontext { max_cqe_version, ..AllocUcontext::new_zeroed() };
        new(object::DEVICE, method::GET_CONTEXT)
            .output(attr::NUM_COMP_VECTORS, 4)
            .output(attr::CORE_SUPPORT, 8)
            .input(attr::UHW_IN, &asked)
            .output(attr::UHW_OUT, size_of::<AllocUcontextResp>())
            .run(&device)
    };
    let answer = get(1).unwrap();
    let context: AllocUcontextResp = answer.output(attr::UHW_OUT);
    assert_eq!((context.tot_bfregs, context.num_dyn_bfregs, context.cqe_version), (0, 0, 1));
    assert_eq!(answer.output::<u32>(attr::NUM_COMP_VECTORS), 1);
    assert_eq!(get(0).err(), Some(libc::EOPNOTSUPP), "too old");
    let query = write(command::QUERY_DEVICE).output(attr::CORE_OUT, size_of::<QueryDeviceResp>());
    let attributes: QueryDeviceResp = query.run(&device).unwrap().output(attr::CORE_OUT);
    assert_eq!((attributes.vendor_id, attributes.phys_port_cnt), (0x02c9, 1));
    assert_eq!(attributes.node_guid, softhca::sysfs::node_guid(0).to_be());
    assert_eq!(
        write(command::QUERY_DEVICE).run(&device).err(),
        Some(libc::ENOSPC),
        "libibverbs' first question"
    );
}

#[test]
fn what_is_not_there_is_said() {
    let device = Device::open();
    assert_eq!(write(4).run(&device).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(new(9, 0).run(&device).err(), Some(libc::EPROTONOSUPPORT), "flows");
    assert_eq!(new(object::PD, 99).run(&device).err(), Some(libc::EPROTONOSUPPORT));
    let port = |port| new(object::DEVICE, method::QUERY_PORT).number(attr::QUERY_PORT_NUM, port).run(&device);
    assert!(port(1).is_ok());
    assert_eq!(port(2).err(), Some(libc::EINVAL));
    let gid = |index| {
        let command = new(object::DEVICE, method::QUERY_GID_ENTRY).number(attr::GID_ENTRY_PORT, 1);
        command.number(attr::GID_ENTRY_INDEX, index).output(attr::GID_ENTRY_RESP, 32).run(&device)
    };
    assert!(gid(0).is_ok());
    assert_eq!(gid(1).err(), Some(libc::ENODATA));
    for (object, method) in [
        (object::PD, 0),
        (object::MR, 1),
        (object::CQ, 1),
        (object::QP, 1),
        (object::SRQ, 1),
        (object::AH, 0),
    ] {
        assert_eq!(destroy(&device, object, method, 77), Err(libc::EINVAL), "{object}");
    }
    // SAFETY: the path is a C string. There are at most 8 devices.
    let fd = unsafe { hooks::open(c"/dev/infiniband/uverbs7".as_ptr(), libc::O_RDWR, 0) };
    assert_eq!((fd, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    // SAFETY: the hook must refuse an address that is not mapped, which this test checks.
    let result = unsafe { hooks::ioctl(device.0, RDMA_VERBS_IOCTL, std::ptr::dangling_mut()) };
    assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
}

#[test]
fn objects_in_use_stay() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = create_qp(&device, &parts, 2, &asked).unwrap();
    let memory = [0u8; 100];
    let mr = reg_mr(&device, parts.pd, memory.as_ptr() as u64, 100, 0x1000).unwrap();
    assert_eq!(mr.lkey, mr.rkey);
    assert_eq!(destroy(&device, object::CQ, method::DESTROY, parts.cq), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Err(libc::EBUSY));
    let free_uar = || new(object::UAR, method::UAR_DESTROY).handle(attr::UAR_HANDLE, parts.uar).run(&device);
    assert_eq!(free_uar().err(), Some(libc::EBUSY));
    assert_eq!(
        destroy(&device, object::MR, method::MR_DESTROY, qp),
        Err(libc::EINVAL),
        "another kind of object"
    );
    let gone = new(object::QP, method::DESTROY).handle(attr::HANDLE, qp).output(attr::DESTROY_RESP, 4);
    assert_eq!(gone.run(&device).unwrap().output::<u32>(attr::DESTROY_RESP), 0, "no events");
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Err(libc::EBUSY), "the region");
    assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr.mr_handle), Ok(()));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Ok(()));
    assert_eq!(destroy(&device, object::CQ, method::DESTROY, parts.cq), Ok(()));
    assert!(free_uar().is_ok());
}

#[test]
fn memory_that_is_not_there_is_a_fault() {
    let device = Device::open();
    let mut parts = parts(&device);
    assert_eq!(reg_mr(&device, parts.pd, 4096, 100, 0).err(), Some(libc::EFAULT));
    assert_eq!(reg_mr(&device, parts.pd, 4096, 0, 0).err(), Some(libc::EINVAL));
    assert_eq!(reg_mr(&device, 999, parts.rings.ring(), 100, 0).err(), Some(libc::EINVAL));
    let good = a_cq(parts.rings);
    assert_eq!(create_cq(&device, 15, &CreateCq { buf_addr: 4096, ..good }), Err(libc::EFAULT));
    assert_eq!(create_cq(&device, 15, &CreateCq { db_addr: 4096, ..good }), Err(libc::EFAULT));
    assert_eq!(create_cq(&device, 15, &CreateCq { buf_addr: good.buf_addr + 4, ..good }), Err(libc::EINVAL));
    assert_eq!(create_cq(&device, 15, &CreateCq { cqe_size: 32, ..good }), Err(libc::EOPNOTSUPP));
    assert_eq!(create_cq(&device, 15, &CreateCq { cqe_comp_en: 1, ..good }), Err(libc::EOPNOTSUPP));
    assert_eq!(create_cq(&device, u32::MAX, &good), Err(libc::EINVAL));
    assert_eq!(create_cq(&device, 0, &good), Err(libc::EINVAL));
    assert_eq!(create_cq_on(&device, 1, 15, &good), Err(libc::EINVAL), "there is one completion vector");
    let good = a_qp(&mut parts);
    let refused = |asked: CreateQp| create_qp(&device, &parts, 2, &asked).unwrap_err();
    assert_eq!(refused(CreateQp { buf_addr: 4096, ..good }), libc::EFAULT);
    assert_eq!(refused(CreateQp { db_addr: 0, ..good }), libc::EFAULT);
    assert_eq!(refused(CreateQp { sq_wqe_count: 15, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { rq_wqe_count: u32::MAX, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { bfreg_index: 7, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { flags: 1 << 2, ..good }), libc::EOPNOTSUPP);
    assert_eq!(create_qp(&device, &parts, 8, &good), Err(libc::EOPNOTSUPP), "raw packets");
}

#[test]
fn attributes_of_a_queue_pair_come_back() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp_handle = create_qp(&device, &parts, 2, &asked).unwrap();
    let modify = |change: ModifyQp| {
        let change = ModifyQp { qp_handle, ..change };
        write(command::MODIFY_QP).input(attr::CORE_IN, &change).run(&device).map(|_| ())
    };
    let none = ModifyQp::new_zeroed();
    let init = ModifyQp {
        attr_mask: ibv::IBV_QP_STATE | ibv::IBV_QP_PORT | ibv::IBV_QP_PKEY_INDEX | ibv::IBV_QP_ACCESS_FLAGS,
        qp_state: 1,
        port_num: 1,
        qp_access_flags: 6,
        ..none
    };
    assert_eq!(modify(ModifyQp { port_num: 2, ..init }), Err(libc::EINVAL));
    assert_eq!(modify(ModifyQp { attr_mask: ibv::IBV_QP_STATE, ..init }), Err(libc::EINVAL));
    assert_eq!(modify(ModifyQp { attr_mask: ibv::IBV_QP_CAP, ..none }), Err(libc::EOPNOTSUPP));
    assert_eq!(modify(init), Ok(()));
    let mut rtr = ModifyQp {
        attr_mask: ibv::IBV_QP_STATE
            | ibv::IBV_QP_AV
            | ibv::IBV_QP_PATH_MTU
            | ibv::IBV_QP_DEST_QPN
            | ibv::IBV_QP_RQ_PSN
            | ibv::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv::IBV_QP_MIN_RNR_TIMER,
        qp_state: 2,
        path_mtu: 4,
        dest_qp_num: 0x123,
        rq_psn: 77,
        min_rnr_timer: 12,
        max_dest_rd_atomic: 3,
        ..none
    };
    rtr.dest.is_global = 1;
    rtr.dest.dgid[15] = 9;
    rtr.dest.sgid_index = 5;
    assert_eq!(modify(rtr), Err(libc::EINVAL), "there is one GID");
    rtr.dest.sgid_index = 0;
    rtr.dest.traffic_class = 33;
    assert_eq!(modify(rtr), Ok(()));
    let asked = QueryQp { qp_handle, ..QueryQp::new_zeroed() };
    let query =
        write(command::QUERY_QP).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 128).run(&device);
    let answer: QueryQpResp = query.unwrap().output(attr::CORE_OUT);
    assert_eq!((answer.qp_state, answer.path_mtu, answer.dest_qp_num, answer.rq_psn), (2, 4, 0x123, 77));
    assert_eq!(
        (answer.port_num, answer.qp_access_flags, answer.sq_sig_all, answer.max_send_wr),
        (1, 6, 1, 16)
    );
    assert_eq!((answer.dest.dgid[15], answer.dest.traffic_class), (9, 33));
    assert_eq!((answer.max_recv_wr, answer.max_recv_sge), (16, 1), "what was given: 10 were asked for");
    let reset = ModifyQp { attr_mask: ibv::IBV_QP_STATE, ..none };
    assert_eq!(modify(reset), Ok(()));
    assert_eq!(modify(ModifyQp { qp_state: 3, ..reset }), Err(libc::EINVAL), "not from RESET");
}

#[test]
fn closing_takes_everything_and_an_exhausted_card_says_so() {
    let _alone = CARD.write();
    let [device, other] = [(); 2].map(|()| Device(Device::descriptor(), None));
    let mut allocated = 0;
    let refused = loop {
        match alloc_pd(&device) {
            Ok(_) => allocated += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((refused, allocated), (libc::ENOMEM, softhca::card::LIMITS.max_pd));
    assert_eq!(alloc_pd(&other), Err(libc::ENOMEM), "it is the same card");
    drop(device);
    assert!(alloc_pd(&other).is_ok(), "all of them went with their context");
}
