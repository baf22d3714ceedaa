//! The resource manager, after the open kernel modules.

use super::parts::{GPU_LEN, Opened, argument, errno};
use gdsync_sys::nvrm as raw;
use std::collections::BTreeMap;
use std::io;
use zerocopy::{FromBytes, IntoBytes};

/// The only GPU's instance.
pub(crate) const INSTANCE: u32 = 3;
/// Identifier of CUDA's export in these tests: any number.
pub(crate) const EXPORTED: i32 = 77;

pub(crate) struct Nvrm {
    /// Minor numbers of device files.
    pub(crate) devices: Vec<u32>,
    /// Minor number of the memory's GPU.
    pub(crate) minor: u32,
    /// Status of a request: (id, status), where id is a class, a command or a request.
    pub(crate) refuses: Option<(u64, u32)>,
    /// True to return other handles than requested.
    pub(crate) renames: bool,
    /// True to return another GPU instance.
    pub(crate) instance: u32,
    /// Clients, and the control file of each.
    clients: BTreeMap<u32, i32>,
    next_client: u32,
    /// Classes of all other objects by client and handle; memory has class 0.
    objects: BTreeMap<(u32, u32), u32>,
    registered: Vec<i32>,
    /// Mappable length and mapping identifier, by file.
    contexts: BTreeMap<i32, (u64, u64)>,
}

impl Nvrm {
    pub(crate) fn new(devices: &[u32], minor: u32) -> Self {
        Nvrm {
            devices: devices.to_vec(),
            minor,
            refuses: None,
            renames: false,
            instance: INSTANCE,
            clients: BTreeMap::new(),
            next_client: 0xc1d0_0001,
            objects: BTreeMap::new(),
            registered: Vec::new(),
            contexts: BTreeMap::new(),
        }
    }

    pub(super) fn objects(&self) -> usize {
        self.objects.len() + self.contexts.len() + self.clients.len()
    }

    pub(super) fn closed(&mut self, fd: i32, mistakes: &mut Vec<String>) {
        let left: Vec<u32> =
            self.clients.iter().filter(|(_, of)| **of == fd).map(|(client, _)| *client).collect();
        for client in left {
            mistakes.push("a client was left to the resource manager".to_owned());
            self.free(client);
        }
    }

    fn free(&mut self, client: u32) {
        self.clients.remove(&client);
        self.objects.retain(|(of, _), _| *of != client);
    }

    fn class(&self, client: u32, object: u32) -> Option<u32> {
        self.objects.get(&(client, object)).copied()
    }

    pub(super) fn device_closed(&mut self, fd: i32) {
        self.registered.retain(|registered| *registered != fd);
        self.contexts.remove(&fd);
    }

    /// Handles a request to a GPU's file.
    pub(super) fn register(
        &mut self,
        fd: i32,
        request: u64,
        bytes: &mut [u8],
        files: &BTreeMap<i32, Opened>,
    ) -> io::Result<()> {
        if request != raw::REGISTER_FD {
            return Err(errno(libc::EINVAL));
        }
        let register: raw::RegisterFd = argument(bytes);
        if files.get(&register.ctl_fd) != Some(&Opened::Control) || self.registered.contains(&fd) {
            return Err(errno(libc::EINVAL));
        }
        self.registered.push(fd);
        Ok(())
    }

    fn refused(&self, what: u64) -> Option<u32> {
        self.refuses.and_then(|(refused, status)| (refused == what).then_some(status))
    }

    /// Handles a request to the control file.
    ///
    /// # Safety
    /// Pointers in the structures refer to as many bytes as the structures state.
    pub(super) unsafe fn control(
        &mut self,
        fd: i32,
        request: u64,
        bytes: &mut [u8],
        files: &BTreeMap<i32, Opened>,
    ) -> io::Result<()> {
        match request {
            raw::ALLOC => {
                let mut alloc: raw::Alloc = argument(bytes);
                // SAFETY: the caller's.
                alloc.status = unsafe { self.allocate(fd, &mut alloc) };
                bytes.copy_from_slice(alloc.as_bytes());
            }
            raw::CONTROL => {
                let mut control: raw::Control = argument(bytes);
                // SAFETY: the caller's.
                control.status = unsafe { self.command(&control) };
                bytes.copy_from_slice(control.as_bytes());
            }
            raw::MAP_MEMORY => {
                let mut map: raw::MapMemory = argument(bytes);
                map.status = self.map(&mut map, files);
                bytes.copy_from_slice(map.as_bytes());
            }
            raw::UNMAP_MEMORY => {
                let mut unmap: raw::UnmapMemory = argument(bytes);
                let known = self.contexts.iter().find(|(_, context)| context.1 == unmap.address);
                let fd = known.map(|(fd, _)| *fd);
                unmap.status = match fd {
                    Some(fd) if self.clients.contains_key(&unmap.client) => {
                        self.contexts.remove(&fd);
                        raw::OK
                    }
                    _ => 0x57,
                };
                bytes.copy_from_slice(unmap.as_bytes());
            }
            raw::FREE => {
                let mut free: raw::Free = argument(bytes);
                free.status = 0x57;
                if self.clients.get(&free.object) == Some(&fd) {
                    free.status = raw::OK;
                    self.free(free.object);
                }
                bytes.copy_from_slice(free.as_bytes());
            }
            _ => return Err(errno(libc::EINVAL)),
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::control`].
    unsafe fn allocate(&mut self, fd: i32, alloc: &mut raw::Alloc) -> u32 {
        if let Some(status) = self.refused(alloc.class.into()) {
            return status;
        }
        if alloc.class == raw::CLASS_CLIENT {
            if alloc.client != 0 || alloc.parent != 0 {
                return 0x23;
            }
            alloc.object = self.next_client;
            self.next_client += 1;
            self.clients.insert(alloc.object, fd);
            return raw::OK;
        }
        if self.clients.get(&alloc.client) != Some(&fd) {
            return 0x23;
        }
        // SAFETY: the caller's.
        let params = unsafe { bytes_at(alloc.params, alloc.params_size) };
        match alloc.class {
            raw::CLASS_DEVICE => {
                let Ok(device) = raw::DeviceParams::read_from_bytes(params) else { return 0x3a };
                if device.device_id != INSTANCE || alloc.parent != alloc.client {
                    return 0x26;
                }
            }
            raw::CLASS_SUBDEVICE => {
                let Ok(subdevice) = raw::SubdeviceParams::read_from_bytes(params) else { return 0x3a };
                if subdevice.subdevice_id != 0
                    || self.class(alloc.client, alloc.parent) != Some(raw::CLASS_DEVICE)
                {
                    return 0x26;
                }
            }
            _ => return 0x22,
        }
        if self.renames {
            alloc.object += 1;
        }
        self.objects.insert((alloc.client, alloc.object), alloc.class);
        raw::OK
    }

    /// # Safety
    /// As [`Self::control`].
    unsafe fn command(&mut self, control: &raw::Control) -> u32 {
        if let Some(status) = self.refused(control.cmd.into()) {
            return status;
        }
        if !self.clients.contains_key(&control.client) || control.object != control.client {
            return 0x23;
        }
        // SAFETY: the caller's.
        let params = unsafe { bytes_at(control.params, control.params_size) };
        match control.cmd {
            raw::GET_EXPORT_INFO => {
                let Ok(mut info) = raw::ExportInfo::read_from_bytes(params) else { return 0x3a };
                if info.fd != EXPORTED {
                    return 0x1f;
                }
                (info.device_instance, info.max_objects) = (self.instance, 1);
                params.copy_from_slice(info.as_bytes());
            }
            raw::IMPORT_OBJECTS => {
                let Ok(mut import) = raw::ImportObjects::read_from_bytes(params) else { return 0x3a };
                if import.fd != EXPORTED || import.count != 1 || import.index != 0 {
                    return 0x1f;
                }
                if self.class(control.client, import.parent) != Some(raw::CLASS_DEVICE) {
                    return 0x57;
                }
                if self.refuses == Some((0, 0)) {
                    import.objects[0] += 1;
                }
                self.objects.insert((control.client, import.objects[0]), 0);
                params.copy_from_slice(import.as_bytes());
            }
            _ => return 0x24,
        }
        raw::OK
    }

    fn map(&mut self, map: &mut raw::MapMemory, files: &BTreeMap<i32, Opened>) -> u32 {
        if let Some(status) = self.refused(raw::MAP_MEMORY) {
            return status;
        }
        if !self.clients.contains_key(&map.client) {
            return 0x23;
        }
        let (device, memory) = (self.class(map.client, map.device), self.class(map.client, map.memory));
        if device != Some(raw::CLASS_DEVICE) || memory != Some(0) {
            return 0x57;
        }
        let right_file =
            files.get(&map.fd) == Some(&Opened::Device(self.minor)) && self.registered.contains(&map.fd);
        if !right_file || map.offset + map.length > GPU_LEN as u64 || self.contexts.contains_key(&map.fd) {
            return 0x1f;
        }
        map.address = 0xf00_0000 + map.fd as u64;
        self.contexts.insert(map.fd, (map.length, map.address));
        raw::OK
    }

    /// Checks that a file is mapped once, with exactly the announced length.
    pub(super) fn may_map(&mut self, fd: i32, offset: u64, len: usize) -> io::Result<usize> {
        match self.contexts.get(&fd) {
            Some((length, _)) if *length == len as u64 && offset == 0 => Ok(0),
            _ => Err(errno(libc::EINVAL)),
        }
    }
}

/// # Safety
/// `len` bytes are valid at `at` during the request.
unsafe fn bytes_at<'a>(at: u64, len: u32) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len as usize) }
}
