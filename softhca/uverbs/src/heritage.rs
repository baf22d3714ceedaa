//! A device that a parent has opened, as the child of a fork needs to know it.
//!
//! It is read without a lock: another thread of the parent may have held any lock when the child was forked.

use crate::descriptors::MAX_FD;
use crate::errno::{Errno, Result};
use gdsync_sys::prm::doorbell::UAR_PAGE;
use softhca::card::FILE_PAGES;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A page of doorbell registers that a program has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) handle: u32,
    pub(crate) id: u32,
    /// Its offset in the file of the card's pages.
    pub(crate) offset: u64,
}

#[derive(Debug)]
pub(crate) struct Heritage {
    /// The device's index.
    pub(crate) index: usize,
    /// The inode of the file of the card's pages.
    pub(crate) inode: u64,
    /// The inode of the file that takes its place in a child; 0 before.
    pub(crate) successor: AtomicU64,
    /// True for a device that the child of a fork has inherited.
    pub(crate) is_inherited: bool,
    /// 0; once the program has asked for its context, [`BEGUN`], or [`WITH_DEVX`].
    begun: AtomicU8,
    last_handle: AtomicU32,
    /// The handle, in the upper half, and the number of the registers at each page of the file; 0 without them.
    registers: Box<[AtomicU64]>,
}

const BEGUN: u8 = 1;
const WITH_DEVX: u8 = 2;

impl Heritage {
    pub(crate) fn new(index: usize, inode: u64) -> Self {
        Heritage {
            index,
            inode,
            successor: AtomicU64::new(0),
            is_inherited: false,
            begun: AtomicU8::new(0),
            last_handle: AtomicU32::new(0),
            registers: (0..FILE_PAGES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// As [`Self::new`], for the same device in the child of a fork, with the same pages of registers. A handle of another
    /// object of the parent is none of the child's.
    pub(crate) fn for_child(&self, inode: u64) -> Self {
        let child = Heritage { is_inherited: true, ..Heritage::new(self.index, inode) };
        child.begun.store(self.begun.load(Ordering::Acquire), Ordering::Release);
        child.last_handle.store(self.last_handle.load(Ordering::Acquire), Ordering::Release);
        self.all_registers().for_each(|registers| child.add(&registers));
        child
    }

    /// Notes that the program has asked for its context. `devx`: it may send commands of DEVX.
    pub(crate) fn begin(&self, devx: bool) {
        self.begun.store(if devx { WITH_DEVX } else { BEGUN }, Ordering::Release);
    }

    /// Once the program has asked for its context, returns whether that may send commands of DEVX.
    pub(crate) fn begun(&self) -> Option<bool> {
        match self.begun.load(Ordering::Acquire) {
            0 => None,
            begun => Some(begun == WITH_DEVX),
        }
    }

    pub(crate) fn next_handle(&self) -> u32 {
        self.last_handle.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    fn place(&self, offset: u64) -> Option<&AtomicU64> {
        let page = offset.is_multiple_of(UAR_PAGE as u64).then_some(offset / UAR_PAGE as u64)?;
        self.registers.get(usize::try_from(page).ok()?)
    }

    pub(crate) fn add(&self, registers: &Registers) {
        if let Some(place) = self.place(registers.offset) {
            place.store(u64::from(registers.handle) << 32 | u64::from(registers.id), Ordering::Release);
        }
    }

    /// Removes the registers of a handle, unless others are at their page by now.
    pub(crate) fn remove(&self, offset: u64, handle: u32) {
        if let Some((place, registers)) = self.place(offset).zip(self.registers_at(offset))
            && registers.handle == handle
        {
            let value = u64::from(handle) << 32 | u64::from(registers.id);
            let _ = place.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    pub(crate) fn registers_at(&self, offset: u64) -> Option<Registers> {
        let value = self.place(offset)?.load(Ordering::Acquire);
        (value != 0).then_some(Registers { handle: (value >> 32) as u32, id: value as u32, offset })
    }

    pub(crate) fn all_registers(&self) -> impl Iterator<Item = Registers> {
        (0..self.registers.len()).filter_map(|page| self.registers_at((page * UAR_PAGE) as u64))
    }
}

/// The device of each descriptor of one; null for others. The context that has entered a pointer keeps its target until
/// it removes the pointer.
static OF_FILES: [AtomicPtr<Heritage>; MAX_FD] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_FD];

fn file(fd: RawFd) -> Option<&'static AtomicPtr<Heritage>> {
    OF_FILES.get(usize::try_from(fd).ok()?)
}

/// Enters the device of a descriptor, which the caller keeps until it enters another or [`forget`]s it.
pub(crate) fn enter(fd: RawFd, heritage: &Arc<Heritage>) {
    if let Some(place) = file(fd) {
        place.store(Arc::as_ptr(heritage).cast_mut(), Ordering::Release);
    }
}

/// Enters the device of a descriptor for its duplicate.
pub(crate) fn duplicate(from: RawFd, to: RawFd) {
    if let Some((from, to)) = file(from).zip(file(to)) {
        to.store(from.load(Ordering::Acquire), Ordering::Release);
    }
}

pub(crate) fn forget(fd: RawFd) {
    if let Some(place) = file(fd) {
        place.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Returns the device of a descriptor; null without one.
pub(crate) fn of(fd: RawFd) -> *const Heritage {
    file(fd).map_or(std::ptr::null(), |place| place.load(Ordering::Acquire))
}

/// Returns the inode of an open file.
pub(crate) fn inode(fd: RawFd) -> Result<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // A system call, as the hook of fstat(2) serves the program's devices.
    //
    // SAFETY: room for the structure, which on 64-bit machines is the kernel's.
    if unsafe { libc::syscall(libc::SYS_fstat, fd, status.as_mut_ptr()) } != 0 {
        return Err(Errno::last());
    }
    // SAFETY: filled by the call.
    Ok(unsafe { status.assume_init() }.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_by_their_page_until_they_are_removed() {
        let heritage = Heritage::new(1, 2);
        let [one, other] = [(1, 7), (2, 8)].map(|(handle, id)| Registers { handle, id, offset: 0x9000 });
        assert_eq!((heritage.next_handle(), heritage.next_handle()), (1, 2));
        heritage.add(&one);
        assert_eq!(heritage.registers_at(0x9000), Some(one));
        heritage.add(&other);
        heritage.remove(0x9000, one.handle);
        assert_eq!(heritage.all_registers().collect::<Vec<_>>(), [other]);
        let child = heritage.for_child(3);
        assert_eq!((child.registers_at(0x9000), child.next_handle()), (Some(other), 3));
        heritage.remove(0x9000, other.handle);
        for offset in [0x9000, 0x9001, 0, u64::MAX, 1 << 60] {
            assert_eq!(heritage.registers_at(offset), None);
            heritage.remove(offset, 1);
        }
    }
}
