//! The GID table of a port, and the entry of it that a connection uses.

use crate::verbs::device::link_layer;
use crate::verbs::{DeviceInner, Error, Gid, GidEntry, GidKind, LinkLayer, PortError, call};
use gdsync_sys::verbs::{ibv_gid, ibv_gid_entry};
use std::ffi::CStr;
use std::io;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// The entry that a connection uses: the one asked for, or
/// - on InfiniBand the first;
/// - on Ethernet the first of the best kind: RoCE v2 before v1, as it can be routed; within a version IPv4 before
///   global IPv6 before link-local addresses.
pub(crate) fn choose(
    table: &[GidEntry],
    device: &str,
    port: u8,
    asked: Option<u32>,
) -> Result<GidEntry, Error> {
    let found = match asked {
        Some(index) => table.iter().find(|entry| entry.index == index),
        None => table.iter().min_by_key(|entry| (preference(entry), entry.index)),
    };
    found.copied().ok_or_else(|| {
        Error::Port(PortError::NoGid {
            device: device.to_owned(),
            port,
            index: asked,
            present: table.iter().map(|entry| entry.index).collect(),
        })
    })
}

/// Smaller is better.
fn preference(entry: &GidEntry) -> (u8, u8) {
    let version = match entry.kind {
        GidKind::InfiniBand => return (0, 0),
        GidKind::RoceV2 => 0,
        GidKind::RoceV1 => 1,
    };
    let reach = match Ipv6Addr::from(entry.gid.0) {
        address if address.to_ipv4_mapped().is_some() => 0,
        address if address.is_unicast_link_local() => 2,
        _ => 1,
    };
    (version, reach)
}

impl DeviceInner {
    pub(crate) fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let attr = self.port_attr(port)?;
        let len = u32::try_from(attr.gid_tbl_len).unwrap_or(0);
        match self.api.query_gid_table {
            Some(_) => match self.gids_by_table(port) {
                Err(Error::Verbs { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                answer => return answer,
            },
            None => tracing::debug!("libibverbs has no GID table query (rdma-core 32): reading sysfs"),
        }
        let link = link_layer(attr.link_layer)?;
        (0..len).filter_map(|index| self.gid_by_sysfs(port, index, link).transpose()).collect()
    }

    pub(crate) fn choose_gid(&self, port: u8, index: Option<u32>) -> Result<GidEntry, Error> {
        choose(&self.gids(port)?, &self.name, port, index)
    }

    fn gids_by_table(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let Some(query) = self.api.query_gid_table else { return Ok(Vec::new()) };
        // The query covers all ports.
        let mut room = 0;
        for port in 1..=self.attributes()?.ports {
            room += usize::try_from(self.port_attr(port)?.gid_tbl_len).unwrap_or(0);
        }
        let mut entries = vec![ibv_gid_entry::default(); room];
        // SAFETY: the context is open; there is room for `room` entries of that size.
        let rc = unsafe { query(self.context(), entries.as_mut_ptr(), room, 0, size_of::<ibv_gid_entry>()) };
        let written = usize::try_from(rc).map_err(|_| Error::Verbs {
            call: "ibv_query_gid_table",
            detail: format!("{room} entries"),
            source: io::Error::from_raw_os_error(i32::try_from(-rc).unwrap_or(libc::EIO)),
        })?;
        entries.truncate(written);
        Ok(entries
            .into_iter()
            .filter(|entry| entry.port_num == u32::from(port))
            // A kind that is unknown here is not usable, but no error.
            .filter_map(|entry| {
                let (kind, gid) = (GidKind::from_raw(entry.gid_type)?, Gid(entry.gid.raw));
                Some(GidEntry { index: entry.gid_index, gid, kind })
            })
            .collect())
    }

    /// An entry, by the interface that predates the table query: `None` if it is empty.
    fn gid_by_sysfs(&self, port: u8, index: u32, link: LinkLayer) -> Result<Option<GidEntry>, Error> {
        let file = self.sysfs_folder().join(format!("ports/{port}/gid_attrs/types/{index}"));
        let kind = match std::fs::read_to_string(&file) {
            Ok(text) => GidKind::from_sysfs(&text, link),
            // The kernel returns EINVAL for an empty entry.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            // Kernels before 4.5 have no such files, and support RoCE v1 only.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(match link {
                LinkLayer::InfiniBand => GidKind::InfiniBand,
                LinkLayer::Ethernet => GidKind::RoceV1,
            }),
            Err(source) => {
                return Err(Error::Verbs {
                    call: "reading sysfs",
                    detail: file.display().to_string(),
                    source,
                });
            }
        };
        let Some(kind) = kind else { return Ok(None) };
        let gid = self.gid(port, index)?;
        Ok((gid != Gid::default()).then_some(GidEntry { index, gid, kind }))
    }

    fn gid(&self, port: u8, index: u32) -> Result<Gid, Error> {
        let mut gid = ibv_gid::default();
        let asked = libc::c_int::try_from(index).unwrap_or(libc::c_int::MAX);
        // SAFETY: the context is open; the place is valid for a GID.
        let rc = unsafe { (self.api.query_gid)(self.context(), port, asked, &mut gid) };
        call::status("ibv_query_gid", rc, || format!("port {port}, index {index}"))?;
        Ok(Gid(gid.raw))
    }

    fn sysfs_folder(&self) -> PathBuf {
        // SAFETY: an open context names its device, which lives as long, with a zero-terminated path.
        let path = unsafe { CStr::from_ptr((*(*self.context()).device).ibdev_path.as_ptr()) };
        PathBuf::from(path.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests;
