//! The card as it presents itself, and registrations of host memory.

use super::super::probe::{Probe, everything};
use super::Step;
use gdsync::verbs::GidKind;
use gdsync::{Access, Device, MemoryRegion, PinnedMemory};
use gdsync_cli::failure::Failure;
use gdsync_sys::prm::command::cap;
use gdsync_sys::prm::field::Field;

const DRIVER: &str =
    "run `gdsync doctor`: it names what the driver, libibverbs or the permissions of /dev/infiniband lack";
const DEVX: &str = "the kernel or libmlx5 has no DEVX: install rdma-core 24 or newer, and let the user open the device's files";
const LIMITS: &str = "raise the limit of locked memory (`ulimit -l unlimited`), which `gdsync doctor` checks";

pub(super) const STEPS: &[Step] = &[
    Step::new("open.device", "the device's attributes", DRIVER, attributes),
    Step::new("open.port", "the port's state, link and sizes", DRIVER, port),
    Step::new("open.gids", "the kinds of the port's GIDs", DRIVER, gids),
    Step::new("open.twice", "a second context of the same device", DRIVER, twice),
    Step::new("open.capabilities", "the capabilities that gdsync and its users ask for", DEVX, capabilities),
    Step::new("open.waits", "what the card can wait for", DEVX, waits),
    Step::new("memory.host", "regions of host memory of several sizes", LIMITS, host_memory),
    Step::new("memory.unaligned", "regions that begin and end inside a page", LIMITS, unaligned_memory),
    Step::new("memory.rights", "regions with each access right", LIMITS, rights),
];

fn attributes(probe: &Probe) -> Result<(), Failure> {
    let found = probe.device.attributes()?;
    probe.note("firmware", found.firmware)?;
    probe.note("ports", u64::from(found.ports))?;
    probe.note("max_queue_pairs", found.max_queue_pairs)?;
    probe.note("max_work_requests", found.max_work_requests)?;
    probe.note("max_segments", found.max_segments)?;
    probe.note("max_completions", found.max_completions)?;
    probe.note("max_reads", found.max_reads)?;
    probe.note("atomics", found.atomics)
}

fn port(probe: &Probe) -> Result<(), Failure> {
    let found = probe.port_attributes()?;
    probe.note("state", found.state.to_string())?;
    probe.note("link", format!("{:?}", found.link))?;
    probe.note("mtu", found.mtu.map_or(0, |mtu| mtu.bytes()))?;
    probe.note("max_message", found.max_message)?;
    probe.note("has_lid", found.lid != 0)
}

fn gids(probe: &Probe) -> Result<(), Failure> {
    let all = probe.device.gids(probe.port)?;
    for kind in [GidKind::InfiniBand, GidKind::RoceV1, GidKind::RoceV2] {
        probe.note(format!("has.{kind:?}"), all.iter().any(|entry| entry.kind == kind))?;
    }
    probe.note("chosen", format!("{:?}", probe.device.choose_gid(probe.port, None)?.kind))
}

fn twice(probe: &Probe) -> Result<(), Failure> {
    let api = gdsync::verbs::provider::system()?;
    let second = Device::open(api, Some(probe.device.name()))?;
    let (one, other) = (probe.port_attributes()?, second.port(probe.port)?);
    probe.note("same_port", one.lid == other.lid && one.link == other.link)
}

fn capabilities(probe: &Probe) -> Result<(), Failure> {
    let general = probe.device.capabilities(cap::TYPE_GENERAL as u16)?;
    let fields: [(&str, Field); 28] = [
        ("log_max_qp_sz", cap::LOG_MAX_QP_SZ),
        ("log_max_qp", cap::LOG_MAX_QP),
        ("log_max_cq_sz", cap::LOG_MAX_CQ_SZ),
        ("log_max_cq", cap::LOG_MAX_CQ),
        ("log_max_mkey", cap::LOG_MAX_MKEY),
        ("dump_fill_mkey", cap::DUMP_FILL_MKEY),
        ("max_indirection", cap::MAX_INDIRECTION),
        ("log_max_klm_list_size", cap::LOG_MAX_KLM_LIST_SIZE),
        ("log_max_ra_req_qp", cap::LOG_MAX_RA_REQ_QP),
        ("log_max_ra_res_qp", cap::LOG_MAX_RA_RES_QP),
        ("rts2rts_qp_dscp", cap::RTS2RTS_QP_DSCP),
        ("rts2rts_qp_udp_sport", cap::RTS2RTS_QP_UDP_SPORT),
        ("local_ca_ack_delay", cap::LOCAL_CA_ACK_DELAY),
        ("log_max_msg", cap::LOG_MAX_MSG),
        ("dp_ordering_ooo_rw_rc", cap::DP_ORDERING_OOO_RW_RC),
        ("dp_ordering_ooo_all_rc", cap::DP_ORDERING_OOO_ALL_RC),
        ("cqe_version", cap::CQE_VERSION),
        ("dct", cap::DCT),
        ("atomic", cap::ATOMIC),
        ("cq_oi", cap::CQ_OI),
        ("pg", cap::PG),
        ("cd", cap::CD),
        ("bf", cap::BF),
        ("max_wqe_sz_sq", cap::MAX_WQE_SZ_SQ),
        ("max_wqe_sz_rq", cap::MAX_WQE_SZ_RQ),
        ("sq_ts_format", cap::SQ_TS_FORMAT),
        ("wait_on_data", cap::WAIT_ON_DATA),
        ("wait_on_time", cap::WAIT_ON_TIME),
    ];
    note_fields(probe, "general", &fields, &general)?;
    let atomic: [(&str, Field); 5] = [
        ("operations", cap::ATOMIC_OPERATIONS),
        ("size_qp", cap::ATOMIC_SIZE_QP),
        ("size_dc", cap::ATOMIC_SIZE_DC),
        ("8b_endianness_mode", cap::ATOMIC_8B_ENDIANNESS_MODE),
        ("fetch_add_pci", cap::FETCH_ADD_PCI_ATOMIC),
    ];
    note_fields(probe, "atomic", &atomic, &probe.device.capabilities(cap::TYPE_ATOMIC as u16)?)
}

fn note_fields(probe: &Probe, of: &str, fields: &[(&str, Field)], answer: &[u8]) -> Result<(), Failure> {
    fields.iter().try_for_each(|(name, field)| probe.note(format!("{of}.{name}"), field.get(answer)))
}

fn waits(probe: &Probe) -> Result<(), Failure> {
    let waits = probe.device.card_waits()?;
    probe.note("data", waits.data)?;
    probe.note("time", waits.time)?;
    probe.note("queues", waits.queues)?;
    probe.note("ignore_overrun", waits.ignore_overrun)?;
    probe.note("recordless", waits.recordless)
}

fn host_memory(probe: &Probe) -> Result<(), Failure> {
    for len in [1, 4096, 64 << 10, 2 << 20, 64 << 20] {
        let region = MemoryRegion::allocate(&probe.pd, len, everything())?;
        probe.note(format!("{len}.has_keys"), region.lkey() != 0 && region.rkey() != 0)?;
    }
    Ok(())
}

fn unaligned_memory(probe: &Probe) -> Result<(), Failure> {
    let memory = PinnedMemory::allocate(3 * 4096)?;
    let region = MemoryRegion::register(&probe.pd, memory, everything())?;
    for range in [1..2, 4095..4097, 7..8190] {
        let remote = region.remote().slice(range)?;
        probe.note("bytes", remote.len)?;
    }
    Ok(())
}

fn rights(probe: &Probe) -> Result<(), Failure> {
    let each = [
        ("none", Access::empty()),
        ("local-write", Access::LOCAL_WRITE),
        ("remote-read", Access::REMOTE_READ),
        ("remote-write", Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        ("remote-atomic", Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
        ("all", everything()),
    ];
    for (name, access) in each {
        let made = MemoryRegion::allocate(&probe.pd, 4096, access);
        probe.note(name, made.is_ok())?;
        made?;
    }
    Ok(())
}
