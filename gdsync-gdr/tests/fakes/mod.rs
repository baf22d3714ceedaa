//! Fake kernel modules, written after the sources of the real ones, on real memory.
//!
//! The GPU's memory is a memfd, so that mappings are real and share bytes. Everything that a module would have to
//! clean up after its user is a mistake of the user, and recorded ([`Fake::end`]).

mod gdrdrv;
mod nvrm;
mod parts;

pub(crate) use gdrdrv::Gdrdrv;
pub(crate) use nvrm::{EXPORTED, INSTANCE, Nvrm};
pub(crate) use parts::{GPU, GPU_LEN};

use crate::kernel::Kernel;
use gdsync_sys::host::page_size;
use parts::{Opened, errno};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// The fake's files have numbers that no real file has.
const FIRST_FD: i32 = 1 << 20;

pub(crate) struct State {
    memory: OwnedFd,
    files: BTreeMap<i32, Opened>,
    next: i32,
    /// Length and file of each mapping, by its first byte.
    maps: BTreeMap<usize, (usize, i32)>,
    /// dma-bufs, which are real files.
    buffers: Vec<i32>,
    pub(crate) texts: BTreeMap<String, String>,
    /// Errno of opening a file.
    pub(crate) no_open: Option<(String, i32)>,
    /// Errno of a request.
    pub(crate) no_ioctl: Option<(u64, i32)>,
    /// Errno of mapping.
    pub(crate) no_mmap: Option<i32>,
    pub(crate) gdrdrv: Option<Gdrdrv>,
    pub(crate) nvrm: Option<Nvrm>,
    mistakes: Vec<String>,
}

/// A kernel with any of the modules.
pub(crate) struct Fake {
    state: Mutex<State>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Fake> {
        // SAFETY: the name is zero-terminated; the descriptor is owned here.
        let memory = unsafe {
            let fd = libc::memfd_create(c"fake-gpu".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, GPU_LEN as libc::off_t), 0);
            OwnedFd::from_raw_fd(fd)
        };
        let state = State {
            memory,
            files: BTreeMap::new(),
            next: FIRST_FD,
            maps: BTreeMap::new(),
            buffers: Vec::new(),
            texts: BTreeMap::new(),
            no_open: None,
            no_ioctl: None,
            no_mmap: None,
            gdrdrv: None,
            nvrm: None,
            mistakes: Vec::new(),
        };
        Arc::new(Fake { state: Mutex::new(state) })
    }

    pub(crate) fn with_gdrdrv(gdrdrv: Gdrdrv) -> Arc<Fake> {
        let fake = Fake::new();
        fake.state().gdrdrv = Some(gdrdrv);
        fake
    }

    /// Creates a driver of this version, whose only GPU has the PCI address `0000:18:00.0`.
    pub(crate) fn with_nvrm(version: &str, nvrm: Nvrm) -> Arc<Fake> {
        let fake = Fake::new();
        {
            let mut state = fake.state();
            state.texts.insert("/sys/module/nvidia/version".to_owned(), format!("{version}\n"));
            let text = format!(
                "Model: \t\t NVIDIA H200\nBus Location: \t 0000:18:00.0\nDevice Minor: \t {}\n",
                nvrm.minor
            );
            state.texts.insert("/proc/driver/nvidia/gpus/0000:18:00.0/information".to_owned(), text);
            state.nvrm = Some(nvrm);
        }
        fake
    }

    /// Frees the memory as CUDA does: unmaps everything that is not pinned persistently.
    pub(crate) fn free_gpu_memory(&self) {
        let mut state = self.state();
        for at in state.gdrdrv.as_mut().unwrap().free_memory() {
            state.zap(at);
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn kernel(self: &Arc<Self>) -> Arc<dyn Kernel> {
        self.clone()
    }

    pub(crate) fn dma_buf(&self) -> OwnedFd {
        let mut state = self.state();
        let fd = state.memory.try_clone().unwrap();
        state.buffers.push(fd.as_raw_fd());
        fd
    }

    /// Reads memory as the GPU sees it.
    pub(crate) fn gpu_reads(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let state = self.state();
        // SAFETY: `bytes` has room for `len` bytes.
        let count = unsafe {
            let at = offset as libc::off_t;
            libc::pread(state.memory.as_raw_fd(), bytes.as_mut_ptr().cast(), len, at)
        };
        assert_eq!(count, len as isize);
        bytes
    }

    /// Writes memory as the GPU.
    pub(crate) fn gpu_writes(&self, offset: usize, bytes: &[u8]) {
        let state = self.state();
        // SAFETY: as many bytes as `bytes` has.
        let count = unsafe {
            let at = offset as libc::off_t;
            libc::pwrite(state.memory.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at)
        };
        assert_eq!(count, bytes.len() as isize);
    }

    /// Checks that nothing is open, mapped, pinned or allocated any more, and that no mistake was recorded.
    pub(crate) fn end(&self) {
        let state = self.state();
        assert!(state.files.is_empty(), "open: {:?}", state.files);
        assert!(state.maps.is_empty(), "mapped: {:?}", state.maps);
        assert!(state.buffers.is_empty(), "dma-bufs: {:?}", state.buffers);
        assert_eq!(state.gdrdrv.as_ref().map_or(0, Gdrdrv::pinned_pages), 0, "pinned");
        assert_eq!(state.nvrm.as_ref().map_or(0, Nvrm::objects), 0, "objects");
        assert!(state.mistakes.is_empty(), "{:?}", state.mistakes);
    }
}

impl State {
    /// Maps a part of the GPU's memory.
    fn map_memory(&mut self, fd: i32, offset: usize, len: usize) -> io::Result<NonNull<u8>> {
        if offset + len > GPU_LEN || !offset.is_multiple_of(page_size()) {
            return Err(errno(libc::EINVAL));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (memory, offset) = (self.memory.as_raw_fd(), offset as libc::off_t);
        // SAFETY: the kernel chooses the address.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, memory, offset) };
        assert_ne!(at, libc::MAP_FAILED);
        self.maps.insert(at as usize, (len, fd));
        Ok(NonNull::new(at.cast()).unwrap())
    }

    /// Removes pages, as a module does when their memory is freed: an access then ends the test by a signal.
    fn zap(&mut self, at: usize) {
        let (len, _) = self.maps[&at];
        // SAFETY: mapped by this fake; the test checks that no other code uses it.
        assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, len, libc::PROT_NONE) }, 0);
    }
}

impl Kernel for Fake {
    fn open(&self, path: &str) -> io::Result<i32> {
        let mut state = self.state();
        if let Some((refused, code)) = &state.no_open
            && refused == path
        {
            return Err(errno(*code));
        }
        let devices = state.nvrm.as_ref().map_or(&[][..], |nvrm| &nvrm.devices);
        let opened = match path {
            "/dev/gdrdrv" if state.gdrdrv.is_some() => Opened::Gdrdrv,
            "/dev/nvidiactl" if state.nvrm.is_some() => Opened::Control,
            _ => match path.strip_prefix("/dev/nvidia").and_then(|minor| minor.parse().ok()) {
                Some(minor) if devices.contains(&minor) => Opened::Device(minor),
                _ => return Err(errno(libc::ENOENT)),
            },
        };
        let fd = state.next;
        state.next += 1;
        state.files.insert(fd, opened);
        Ok(fd)
    }

    fn close(&self, fd: i32) {
        let mut state = self.state();
        if let Some(at) = state.buffers.iter().position(|buffer| *buffer == fd) {
            state.buffers.remove(at);
            // SAFETY: the descriptor is owned here.
            unsafe { libc::close(fd) };
            return;
        }
        let opened = state.files.remove(&fd).unwrap_or_else(|| panic!("{fd} is not open"));
        let state = &mut *state;
        if state.maps.values().any(|(_, of)| *of == fd) {
            state.mistakes.push(format!("{opened:?} was closed while mapped"));
        }
        match (opened, &mut state.gdrdrv, &mut state.nvrm) {
            (Opened::Gdrdrv, Some(gdrdrv), _) => gdrdrv.closed(fd, &mut state.mistakes),
            (Opened::Control, _, Some(nvrm)) => nvrm.closed(fd, &mut state.mistakes),
            (Opened::Device(_), _, Some(nvrm)) => nvrm.device_closed(fd),
            _ => {}
        }
    }

    unsafe fn ioctl(&self, fd: i32, request: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        if let Some((refused, code)) = state.no_ioctl
            && refused == request
        {
            return Err(errno(code));
        }
        let state = &mut *state;
        match (state.files.get(&fd), &mut state.gdrdrv, &mut state.nvrm) {
            (Some(Opened::Gdrdrv), Some(gdrdrv), _) => gdrdrv.ioctl(fd, request, bytes, &mut state.mistakes),
            (Some(Opened::Control), _, Some(nvrm)) => {
                // SAFETY: the caller's.
                unsafe { nvrm.control(fd, request, bytes, &state.files) }
            }
            (Some(Opened::Device(_)), _, Some(nvrm)) => nvrm.register(fd, request, bytes, &state.files),
            _ => Err(errno(libc::EBADF)),
        }
    }

    fn mmap(&self, fd: i32, len: usize, offset: u64) -> io::Result<NonNull<u8>> {
        let mut state = self.state();
        if let Some(code) = state.no_mmap {
            return Err(errno(code));
        }
        let state = &mut *state;
        let at = match state.files.get(&fd) {
            Some(Opened::Gdrdrv) => {
                let gdrdrv = state.gdrdrv.as_mut().unwrap();
                let (handle, first) = gdrdrv.may_map(fd, offset / page_size() as u64, len)?;
                let at = state.map_memory(fd, first, len)?;
                state.gdrdrv.as_mut().unwrap().mapped(handle, at.as_ptr() as usize);
                return Ok(at);
            }
            Some(Opened::Device(_)) => state.nvrm.as_mut().unwrap().may_map(fd, offset, len)?,
            None if state.buffers.contains(&fd) => offset as usize,
            _ => return Err(errno(libc::ENODEV)),
        };
        state.map_memory(fd, at, len)
    }

    unsafe fn munmap(&self, at: NonNull<u8>, len: usize) -> io::Result<()> {
        let mut state = self.state();
        let at = at.as_ptr() as usize;
        assert_eq!(state.maps.remove(&at).map(|(len, _)| len), Some(len), "not what was mapped");
        if let Some(gdrdrv) = &mut state.gdrdrv {
            gdrdrv.unmapped(at);
        }
        // SAFETY: mapped by this fake with that length.
        assert_eq!(unsafe { libc::munmap(at as *mut libc::c_void, len) }, 0);
        Ok(())
    }

    fn read_text(&self, path: &str) -> io::Result<String> {
        self.state().texts.get(path).cloned().ok_or_else(|| errno(libc::ENOENT))
    }
}
