//! The parts of its parent's card that the child of a fork inherits: mapped pages of doorbell registers, which programs ring under
//! numbers that they know.

use super::memory::registers_at;
use crate::card::device::Card;
use crate::card::error::{CardError, missing};
use crate::card::listeners;
use crate::card::memory::uar::WITHOUT_DEVICE_MEMORY;
use crate::os::maps::mappings;
use crate::os::memory::MEMORY_FILE;
use std::fs::read_to_string;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Pages of a file where this process has them mapped.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    addr: u64,
    offsets: Range<u64>,
    protection: libc::c_int,
}

/// Returns the mappings of a card's file, by its inode, in the text of `/proc/self/maps`. Device memory is left out.
fn mapped(maps: &str, inode: u64) -> Vec<Mapped> {
    let mut found = Vec::new();
    for (range, rest) in mappings(maps) {
        let mut words = rest.split_whitespace();
        let (Some(rights), Some(offset)) = (words.next(), words.next()) else { continue };
        let Ok(start) = u64::from_str_radix(offset, 16) else { continue };
        let is_it = words.nth(1).and_then(|inode| inode.parse().ok()) == Some(inode);
        if !is_it || words.next() != Some(MEMORY_FILE) {
            continue;
        }
        let right = |letter, protection| if rights.contains(letter) { protection } else { libc::PROT_NONE };
        let protection = right('r', libc::PROT_READ) | right('w', libc::PROT_WRITE);
        let end = start.saturating_add(range.end - range.start);
        for part in WITHOUT_DEVICE_MEMORY {
            let offsets = part.start.max(start)..part.end.min(end);
            if !offsets.is_empty() {
                found.push(Mapped { addr: range.start + offsets.start - start, offsets, protection });
            }
        }
    }
    found
}

impl Card {
    /// Takes over the pages of doorbell registers of the parent's card, in the child of a fork: `uars` has the number and
    /// the offset of each, `inode` is that of the parent's file of pages ([`Card::uar_file`]). The registers at the
    /// offsets `registers` can be rung, as in [`Card::alloc_uar`]. Where this process has pages of that file mapped, those of this
    /// card's file take their place, so that it reaches its parent's card no longer. Mapped device memory stays.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if this card has no free page at an offset; otherwise as [`Card::alloc_uar`]. The card is
    /// of no use then.
    pub fn inherit_uars(
        &self,
        inode: u64,
        uars: &[(u32, u64)],
        registers: &[usize],
    ) -> Result<(), CardError> {
        let mapped = mapped(&read_to_string("/proc/self/maps")?, inode);
        let registers = registers_at(registers)?;
        self.command(|engine| {
            for &(id, offset) in uars {
                let page = engine.doorbells.memory.take_at(offset)?;
                let page = page.filter(|_| !engine.doorbells.uars.contains_key(&id));
                self.add_uar(engine, id, page.ok_or(missing("free UAR", id))?, registers.clone())?;
            }
            let end = mapped.iter().map(|mapped| mapped.offsets.end).max();
            Ok::<_, CardError>(engine.doorbells.memory.cover(end.unwrap_or(0))?)
        })?;
        let own = self.uar_file()?;
        for Mapped { addr, offsets, protection } in &mapped {
            let (flags, len) = (libc::MAP_SHARED | libc::MAP_FIXED, offsets.end - offsets.start);
            // A direct system call: no hook takes it for the program's.
            //
            // SAFETY: pages of a card's registers or clock take the place of pages of the same kind, with the same rights;
            // all accesses to them are atomic.
            let base = unsafe {
                libc::syscall(libc::SYS_mmap, *addr, len, *protection, flags, own.as_raw_fd(), offsets.start)
            };
            if base == -1 {
                return Err(io::Error::last_os_error().into());
            }
            for (id, offset) in uars.iter().filter(|(_, offset)| offsets.contains(offset)) {
                let page = addr + offset - offsets.start;
                listeners::register(page as usize, self.shared.as_listener(), Some(*id));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::LinkLayer;
    use gdsync_sys::prm::doorbell::UAR_PAGE;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn only_the_file_s_own_mappings_are_found_without_device_memory() {
        let maps = "10000-11000 -w-s 00900000 00:01 7 /memfd:gdsync-softhca (deleted)\n\
            20000-21000 rw-s 00900000 00:01 8 /memfd:gdsync-softhca (deleted)\n\
            30000-31000 rw-s 00800000 00:01 7 /memfd:gdsync-softhca (deleted)\n\
            40000-43000 r--s 007ff000 00:01 7 /memfd:gdsync-softhca (deleted)\n\
            50000-51000 rw-p 00000000 00:01 7 /bin/true\n60000-61000 rw-p 0 00:00 0\nrubbish\n";
        let one = Mapped { addr: 0x10000, offsets: 0x900000..0x901000, protection: libc::PROT_WRITE };
        let other = Mapped { addr: 0x40000, offsets: 0x7ff000..0x800000, protection: libc::PROT_READ };
        assert_eq!(mapped(maps, 7), [one, other]);
    }

    /// Maps the page of registers at an offset, as a program does.
    fn map(file: &File, offset: u64) -> *mut AtomicU64 {
        let (null, write) = (std::ptr::null_mut(), libc::PROT_WRITE);
        // SAFETY: a new mapping of the page.
        let page = unsafe {
            libc::mmap(null, UAR_PAGE, write, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t)
        };
        assert_ne!(page, libc::MAP_FAILED);
        page.cast()
    }

    #[test]
    fn mapped_registers_become_those_of_the_other_card() {
        let start = || Card::stopped(LinkLayer::Ethernet, Box::new(drop)).unwrap();
        let (parent, child) = (start(), start());
        // The last page is in the second piece of the file.
        let uars: Vec<_> = (0..300).map(|_| parent.alloc_uar(&[0]).unwrap()).collect();
        let (one, last) = (uars[0], uars[299]);
        let file = File::from(parent.uar_file().unwrap());
        let inode = file.metadata().unwrap().ino();
        let pages = [one, last].map(|uar| map(&file, uar.offset));
        let inherited = [one, last].map(|uar| (uar.id, uar.offset));
        child.inherit_uars(inode, &inherited, &[0]).unwrap();
        for (number, page) in pages.into_iter().enumerate() {
            // SAFETY: mapped above; the cards access the register as an atomic.
            unsafe { &*page }.store(7 + number as u64, Ordering::Release);
        }
        let rung = |card: &Card, id: u32| {
            let mut rung = Vec::new();
            card.command(|engine| {
                let page = &engine.doorbells.uars[&id];
                rung.extend(page.registers.iter().filter_map(|register| page.page.word(*register).take()));
            });
            rung
        };
        assert_eq!((rung(&child, one.id), rung(&child, last.id)), (vec![7], vec![8]));
        assert!(matches!(
            child.inherit_uars(inode, &inherited, &[0]),
            Err(CardError::NotFound { what: "free UAR", .. })
        ));
        let beyond = [(1, u64::MAX - 4095), (2, 0)];
        for uar in beyond {
            assert!(child.inherit_uars(inode, &[uar], &[0]).is_err(), "{uar:x?}");
        }
        let others: Vec<_> = (0..300).map(|_| child.alloc_uar(&[0]).unwrap()).collect();
        assert!(others.iter().all(|uar| inherited.iter().all(|(id, at)| *id != uar.id && *at != uar.offset)));
    }
}
