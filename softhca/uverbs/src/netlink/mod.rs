//! RDMA netlink: the devices and ports of the process, for `rdma` of iproute2 and for libibverbs.
//!
//! Source: `rdma_netlink.h`, and the answers of Linux 6.1 (`drivers/infiniband/core/nldev.c`).

mod message;

use crate::errno::Result;
use message::{Answer, Header, Request, done, error};
use softhca::card::LinkLayer;
use softhca::sysfs;

/// `RDMA_NL_NLDEV`, the client in the high bits of a message's type.
const NLDEV: u16 = 5 << 10;
/// `RDMA_NLDEV_CMD_*`.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const GET_CHARDEV: u16 = 15;
}
/// `RDMA_NLDEV_ATTR_*`.
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const CAP_FLAGS: u16 = 4;
    pub(super) const FW_VERSION: u16 = 5;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const SYS_IMAGE_GUID: u16 = 7;
    pub(super) const SUBNET_PREFIX: u16 = 8;
    pub(super) const LID: u16 = 9;
    pub(super) const SM_LID: u16 = 10;
    pub(super) const LMC: u16 = 11;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const PORT_PHYS_STATE: u16 = 13;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const NDEV_INDEX: u16 = 50;
    pub(super) const NDEV_NAME: u16 = 51;
    pub(super) const NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const CHARDEV_TYPE: u16 = 69;
    pub(super) const CHARDEV_NAME: u16 = 70;
    pub(super) const CHARDEV_ABI: u16 = 71;
    pub(super) const CHARDEV: u16 = 72;
    pub(super) const UVERBS_DRIVER_ID: u16 = 73;
    pub(super) const COPY_ON_FORK: u16 = 93;
}
/// `RDMA_NODE_IB_CA`.
const CHANNEL_ADAPTER: u8 = 1;
/// `RDMA_DRIVER_MLX5`.
const DRIVER: u32 = 1;
/// `IB_PORT_ACTIVE`, `IB_PORT_PHYS_STATE_LINK_UP`.
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
/// Version of mlx5's interface (`MLX5_IB_UVERBS_ABI_VERSION`).
const ABI: u64 = 1;

/// The process's devices, as netlink shows them.
pub(crate) trait Devices {
    fn link_layers(&self) -> Result<Vec<LinkLayer>>;
    fn lid(&self, index: usize) -> u16;
}

/// Returns one message for each request in a message. `port` is the sender's.
///
/// # Errors
/// The environment's list of devices is malformed.
pub(crate) fn answer(message: &[u8], port: u32, devices: &dyn Devices) -> Result<Vec<Vec<u8>>> {
    let links = devices.link_layers()?;
    let (mut answers, mut rest) = (Vec::new(), message);
    while let Some((request, after)) = Request::split(rest) {
        rest = after;
        let header = &request.header;
        let several = header.wants_all();
        match messages(&request, port, &links, devices) {
            Some(messages) => {
                answers.extend(messages);
                if several {
                    answers.push(done(header, port));
                } else if header.wants_acknowledgement() {
                    answers.push(error(header, port, 0));
                }
            }
            None => {
                tracing::info!(kind = header.kind, "a request of RDMA netlink that is not answered");
                answers.push(error(header, port, libc::EINVAL));
            }
        }
    }
    Ok(answers)
}

/// Returns the messages that answer a request; `None` for one that the kernel refuses: unknown, or about a
/// missing device or port.
fn messages(
    request: &Request<'_>,
    port: u32,
    links: &[LinkLayer],
    devices: &dyn Devices,
) -> Option<Vec<Vec<u8>>> {
    let header = &request.header;
    let device =
        || request.number(attr::DEV_INDEX).map(|index| index as usize).filter(|at| *at < links.len());
    let new = |index: usize| {
        Answer::new(header, port, header.wants_all())
            .number(attr::DEV_INDEX, index as u32)
            .text(attr::DEV_NAME, &format!("mlx5_{index}"))
    };
    match (header.kind.checked_sub(NLDEV)?, header.wants_all()) {
        (command::GET, true) => Some((0..links.len()).map(|i| describe(new(i), i, links[i])).collect()),
        (command::GET, false) => device().map(|index| vec![describe(new(index), index, links[index])]),
        (command::PORT_GET, all) => {
            let index = device()?;
            if !all && request.number(attr::PORT_INDEX)? != 1 {
                return None;
            }
            Some(vec![describe_port(new(index), links[index], || devices.lid(index))])
        }
        (command::SYS_GET, false) => Some(vec![describe_system(header, port)]),
        (command::GET_CHARDEV, false) => {
            let answer = |name: &str, abi: u64| {
                Answer::new(header, port, false)
                    .text(attr::CHARDEV_NAME, name)
                    .number(attr::CHARDEV_ABI, abi)
                    .number(attr::CHARDEV, sysfs::DEVICE_NUMBER)
            };
            let answer = match request.attribute(attr::CHARDEV_TYPE)?.strip_suffix(b"\0")? {
                b"uverbs" => {
                    answer(&format!("uverbs{}", device()?), ABI).number(attr::UVERBS_DRIVER_ID, DRIVER)
                }
                b"rdma_cm" => answer(sysfs::MANAGER, sysfs::MANAGER_ABI.into()),
                _ => return None,
            };
            Some(vec![answer.bytes()])
        }
        _ => None,
    }
}

fn describe(answer: Answer, index: usize, link: LinkLayer) -> Vec<u8> {
    let guid = sysfs::node_guid(index);
    let protocol = match link {
        LinkLayer::InfiniBand => "ib",
        LinkLayer::Ethernet => "roce",
    };
    answer
        .number(attr::PORT_INDEX, 1u32)
        .text(attr::FW_VERSION, sysfs::FIRMWARE)
        .number(attr::NODE_GUID, guid)
        .number(attr::SYS_IMAGE_GUID, guid)
        .number(attr::DEV_NODE_TYPE, CHANNEL_ADAPTER)
        .text(attr::DEV_PROTOCOL, protocol)
        .bytes()
}

fn describe_port(answer: Answer, link: LinkLayer, lid: impl Fn() -> u16) -> Vec<u8> {
    let answer = answer.number(attr::PORT_INDEX, 1u32);
    let answer = match link {
        LinkLayer::InfiniBand => answer
            .number(attr::CAP_FLAGS, u64::from(link.capability_flags()))
            .number(attr::SUBNET_PREFIX, sysfs::SUBNET_PREFIX)
            .number(attr::LID, u32::from(lid()))
            .number(attr::SM_LID, 0u32)
            .number(attr::LMC, 0u8),
        LinkLayer::Ethernet => {
            let (name, index) = sysfs::interface();
            answer.number(attr::NDEV_INDEX, index).text(attr::NDEV_NAME, &name)
        }
    };
    answer.number(attr::PORT_STATE, ACTIVE).number(attr::PORT_PHYS_STATE, LINK_UP).bytes()
}

/// Devices are visible in all network namespaces, and memory is copied on fork: the card reaches memory by
/// its address in the process that registered it.
fn describe_system(request: &Header, port: u32) -> Vec<u8> {
    let answer = Answer::new(request, port, false);
    answer.number(attr::NETNS_MODE, 1u8).number(attr::COPY_ON_FORK, 1u8).bytes()
}

#[cfg(test)]
mod tests;
