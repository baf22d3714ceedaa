//! Open devices and their queries, and `mlx5dv_devx_general_cmd` with this front's only command,
//! QUERY_HCA_CAP. Programs that make objects by commands use libmlx5 on `softhca-uverbs`.

use super::device::{self, Device, OpenCard, OwnUar, c_string};
use super::errno::{self, Errno, Result};
use super::event_queue::{EventQueue, Routes};
use super::object::{self, CStruct, object};
use crate::card::simulation::{SimulatedCard, World};
use crate::card::{Card, CardError, GidKind, LIMITS, LinkLayer};
use crate::liberties::Schedule;
use gdsync_sys::prm::command::{header, opcode};
use gdsync_sys::verbs::{
    self, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr,
};
use libc::{c_int, c_void, size_t, ssize_t};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// The card's only port.
pub(super) const PORT: u8 = 1;
/// Number of completion vectors, which are equal.
pub(super) const COMPLETION_VECTORS: c_int = 1;
/// Vendor of the cards with this interface. `ibv_query_device` reports an IEEE OUI, not a PCI ID.
const VENDOR_MELLANOX: u32 = 0x02c9;
/// `IBV_ATOMIC_HCA`: operations are atomic among those of one card. This card's are also atomic for CPUs, but
/// mlx5 does not report that.
const ATOMIC_HCA: c_int = 1;
/// `IBV_PORT_LINK_UP`, `enum ib_port_phys_state` of the kernel.
const PHYS_LINK_UP: u8 = 5;
/// Width code of 4 lanes (`enum ib_port_width`).
const WIDTH_4X: u8 = 2;
/// Speed code of HDR, 50 Gbit/s a lane (`enum ib_port_speed`).
const SPEED_HDR: u8 = 64;

object! {
    Context: ibv_context {
        pub(super) events: Arc<EventQueue>,
        /// The UAR of queue pairs without a thread domain, and of completion queues.
        pub(super) uar: OwnUar,
        pub(super) open: Arc<OpenCard>,
    }
}

impl Context {
    fn new(device: &'static Device, open: Arc<OpenCard>) -> Result<Self> {
        let uar = OwnUar::of_context(&open)?;
        let events = Arc::new(EventQueue::new()?);
        let ibv = ibv_context {
            device: device.handle(),
            ops: [std::ptr::null_mut(); 32],
            cmd_fd: -1,
            async_fd: events.fd(),
            num_comp_vectors: COMPLETION_VECTORS,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // Without a surrounding `verbs_context`, the inline functions of verbs.h find no extended operations.
            abi_compat: std::ptr::null_mut(),
        };
        Ok(Context { ibv: CStruct::new(ibv), events, uar, open })
    }

    pub(super) fn card(&self) -> &Card {
        &self.open.card
    }
}

/// # Safety
/// `device` is null or from a list.
pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller; devices are static.
        let device = unsafe { object::borrow::<Device>(device) }?;
        let context = Context::new(device, device.card()?)?;
        Ok(object::into_raw(Arc::new(context)))
    })
}

/// Starts a card of a simulation, and opens a context of it for [`super::verbs_api`]. The card has an InfiniBand port.
///
/// The context is closed by `ibv_close_device`, at the latest when the program ends; its objects may outlive the card
/// ([`SimulatedCard`]), which then does nothing for them.
///
/// # Errors
/// As [`World::start_card`]; [`CardError::System`] without a descriptor or memory for the context.
pub fn open_simulated(
    world: &mut World,
    schedule: Option<&Schedule>,
) -> std::result::Result<(SimulatedCard, NonNull<ibv_context>), CardError> {
    let routes = Arc::new(Routes::default());
    let sink = routes.clone();
    let card =
        world.start_card(LinkLayer::InfiniBand, schedule, Box::new(move |event| sink.deliver(event)))?;
    let open = Arc::new(OpenCard { card: card.card.clone(), routes });
    let context = Context::new(device::simulated(), open)
        .map_err(|errno| CardError::System(io::Error::from_raw_os_error(errno.0)))?;
    let raw = NonNull::new(object::into_raw(Arc::new(context))).ok_or_else(io::Error::last_os_error)?;
    Ok((card, raw))
}

/// `ibv_close_device`. EBUSY while objects of the context exist.
///
/// # Safety
/// `context` is null or open.
pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy::<Context>(context, |_| Ok(())) })
}

/// # Safety
/// `context` is null or open; `attr` is null or valid.
pub(super) unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::borrow::<Context>(context)?, object::attributes(attr)?) };
        *attr = device_attributes(context.card());
        Ok(())
    })
}

fn device_attributes(card: &Card) -> ibv_device_attr {
    let (guid, limits) = (card.guid(), card.limits());
    let count = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let nothing: ibv_device_attr = unsafe { std::mem::zeroed() };
    let reads = c_int::from(limits.max_rd_atomic);
    ibv_device_attr {
        fw_ver: c_string(env!("CARGO_PKG_VERSION")),
        node_guid: guid.to_be(),
        sys_image_guid: guid.to_be(),
        max_mr_size: u64::MAX,
        // Every page size from 4 KiB on.
        page_size_cap: !0xfff,
        vendor_id: VENDOR_MELLANOX,
        max_qp: count(limits.max_qp),
        max_qp_wr: count(limits.max_qp_wr),
        max_sge: count(limits.max_send_sge.min(limits.max_recv_sge)),
        max_sge_rd: count(limits.max_send_sge),
        max_cq: count(limits.max_cq),
        // One entry of the ring is reserved, as in `mlx5dv_create_cq`.
        max_cqe: count(limits.max_cqe - 1),
        // Regions and windows share the table of keys.
        max_mr: count(limits.max_mr),
        max_mw: count(limits.max_mr),
        device_cap_flags: verbs::IBV_DEVICE_MEM_MGT_EXTENSIONS | verbs::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_pd: count(limits.max_pd),
        max_qp_rd_atom: reads,
        max_res_rd_atom: reads.saturating_mul(count(limits.max_qp)),
        max_qp_init_rd_atom: reads,
        atomic_cap: ATOMIC_HCA,
        max_ah: c_int::MAX,
        max_srq: count(limits.max_srq),
        // One entry of the ring ends its list.
        max_srq_wr: count(limits.max_srq_entries - 1),
        max_srq_sge: count(limits.max_srq_sge),
        max_pkeys: card.pkeys().keys().len() as u16,
        phys_port_cnt: PORT,
        ..nothing
    }
}

/// `ibv_query_port`: fills the fields up to `flags`, as the exported function does.
///
/// # Safety
/// `context` is null or open; `attr` is null or valid.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::borrow::<Context>(context)?, object::attributes(attr)?) };
        check_port(port)?;
        let (port_cap_flags2, active_speed_ex) = (attr.port_cap_flags2, attr.active_speed_ex);
        *attr = ibv_port_attr { port_cap_flags2, active_speed_ex, ..port_attributes(context.card()) };
        Ok(())
    })
}

fn port_attributes(card: &Card) -> ibv_port_attr {
    let (lid, link_layer) = match card.link_layer() {
        LinkLayer::InfiniBand => (card.lid(), verbs::IBV_LINK_LAYER_INFINIBAND),
        LinkLayer::Ethernet => (0, verbs::IBV_LINK_LAYER_ETHERNET),
    };
    ibv_port_attr {
        state: verbs::IBV_PORT_ACTIVE,
        max_mtu: verbs::IBV_MTU_4096,
        active_mtu: verbs::IBV_MTU_4096,
        gid_tbl_len: c_int::try_from(card.gids().len()).unwrap_or(c_int::MAX),
        max_msg_sz: LIMITS.max_message,
        bad_pkey_cntr: card.bad_pkeys(),
        pkey_tbl_len: card.pkeys().keys().len() as u16,
        lid,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_HDR,
        phys_state: PHYS_LINK_UP,
        link_layer,
        ..ibv_port_attr::default()
    }
}

fn check_port(port: u8) -> Result<()> {
    if port == PORT { Ok(()) } else { Err(Errno::INVALID) }
}

/// `ibv_query_gid`: 0, or -1 with `errno` set. The table is [`Card::gids`].
///
/// # Safety
/// `context` is null or open; `gid` is null or valid.
pub(super) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    errno::minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (context, gid) = unsafe { (object::borrow::<Context>(context)?, object::attributes(gid)?) };
        check_port(port)?;
        let entry = usize::try_from(index).ok().and_then(|index| context.card().gids().get(index));
        gid.raw = entry.ok_or(Errno::INVALID)?.gid;
        Ok(())
    })
}

/// `ibv_query_gid_table`, which the inline function calls. Returns the number of entries, or a negative
/// errno. EINVAL: too little room, flags, or entries of another size.
///
/// # Safety
/// `context` is null or open; `entries` is null or valid for `max_entries`.
pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> ssize_t {
    // SAFETY: guaranteed by the caller.
    let table = unsafe { object::borrow::<Context>(context) }.and_then(|context| {
        let table = context.card().gids();
        let fits = max_entries >= table.len() && flags == 0 && entry_size == size_of::<ibv_gid_entry>();
        if fits && !entries.is_null() { Ok(table) } else { Err(Errno::INVALID) }
    });
    match table {
        Ok(table) => {
            for (index, entry) in (0..).zip(table) {
                let entry = ibv_gid_entry {
                    gid: ibv_gid { raw: entry.gid },
                    gid_index: index,
                    port_num: PORT.into(),
                    gid_type: match entry.kind {
                        GidKind::InfiniBand => verbs::IBV_GID_TYPE_IB,
                        GidKind::RoceV1 => verbs::IBV_GID_TYPE_ROCE_V1,
                        GidKind::RoceV2 => verbs::IBV_GID_TYPE_ROCE_V2,
                    },
                    ndev_ifindex: 0,
                };
                // SAFETY: `entries` has room for the whole table, as checked.
                unsafe { entries.add(index as usize).write(entry) };
            }
            table.len() as ssize_t
        }
        Err(errno) => -(errno::status(|| Err(errno)) as ssize_t),
    }
}

/// `MLX5_CMD_STAT_BAD_OP_ERR` and `MLX5_CMD_STAT_BAD_PARAM_ERR` of `mlx5_ifc.h`.
const BAD_OPCODE: u8 = 0x02;
const BAD_PARAMETER: u8 = 0x03;

/// `mlx5dv_devx_general_cmd`. EREMOTEIO with a status in the answer if the device refuses; EINVAL without
/// room for a header.
///
/// # Safety
/// `context` is null or open; `input` is readable and `output` writable for their lengths.
pub(super) unsafe extern "C" fn general_cmd(
    context: *mut ibv_context,
    input: *const c_void,
    input_len: size_t,
    output: *mut c_void,
    output_len: size_t,
) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let context = unsafe { object::borrow::<Context>(context) }?;
        let (input, output) = (input.cast::<u8>(), output.cast::<u8>());
        if input.is_null() || output.is_null() || input_len.min(output_len) < header::BYTES {
            return Err(Errno::INVALID);
        }
        // SAFETY: not null, and of the checked length, which the caller guarantees.
        let command = unsafe { input.cast::<[u8; header::BYTES]>().read_unaligned() };
        let status = match header::OPCODE.get(&command) {
            opcode if opcode == u64::from(opcode::QUERY_HCA_CAP) => {
                // The last bit selects current or maximum values, which are the same.
                match context.card().capabilities(header::OP_MOD.get(&command) >> 1) {
                    Some(answer) => {
                        let length = answer.len().min(output_len);
                        // SAFETY: not null, and writable for so many bytes, which the caller guarantees.
                        unsafe { answer.as_ptr().copy_to_nonoverlapping(output, length) };
                        return Ok(());
                    }
                    None => BAD_PARAMETER,
                }
            }
            _ => BAD_OPCODE,
        };
        let mut refusal = [0; header::BYTES];
        header::STATUS.put(&mut refusal, status);
        // SAFETY: not null, and of the checked length, which the caller guarantees.
        unsafe { refusal.as_ptr().copy_to_nonoverlapping(output, refusal.len()) };
        Err(Errno::REFUSED)
    })
}
