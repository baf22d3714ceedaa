//! Pages of doorbell registers. All pages of a card are in one growing file in memory, so a card with thousands of
//! pages has one file descriptor, and a program can map any page a second time. The file also stands for the device
//! when a program maps pages of a descriptor of `/dev/infiniband/uverbs*`: the system itself serves such a call.

use super::clock::{self, CLOCK_INFO_PAGE, CLOCK_PAGE, Clock};
use crate::card::config::{InvalidValue, LIMITS};
use crate::os::memory::{MemoryFile, SharedMemory};
use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_sys::shared::SharedU64;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of pages by which the file grows. Each such piece is one mapping.
const PIECE: usize = 256;

/// The first page of device memory in the file: libmlx5 maps it by command 8 (`MLX5_IB_MMAP_DEVICE_MEM`) and the index
/// of a page.
const DEVICE_MEMORY: usize = 8 << 8;

/// The first page of registers in the file, beyond the offsets that libmlx5 composes of a command and an index: command
/// << 8 | index, in pages, with commands of `enum mlx5_ib_mmap_cmd`, of which 8 is the last. The file has holes between
/// the clock pages and device memory.
const FIRST: usize = 9 << 8;

/// Number of pages in the largest file of a card: no page that a program maps has a higher number.
pub const FILE_PAGES: usize = FIRST + LIMITS.max_qp as usize;

/// The parts of the file beside device memory.
pub(crate) const WITHOUT_DEVICE_MEMORY: [Range<u64>; 2] =
    [0..(DEVICE_MEMORY * UAR_PAGE) as u64, (FIRST * UAR_PAGE) as u64..u64::MAX];

/// The memory of all pages of a card; allocated with the first page.
#[derive(Default)]
pub(crate) struct UarPages {
    file: Option<MemoryFile>,
    clock: Arc<Clock>,
    /// Mapped as long as the file.
    device_memory: Option<SharedMemory>,
    device_pages: DevicePages,
    pieces: Vec<SharedMemory>,
    /// Unused pages, the longest unused first: a late doorbell of a page's former owner should not ring a new one.
    free: VecDeque<usize>,
}

impl UarPages {
    /// Creates an empty set of pages. The clock is shown on a page of the file.
    pub(crate) fn showing(clock: Arc<Clock>) -> Self {
        UarPages { clock, ..UarPages::default() }
    }

    /// Takes a page with all registers 0. [`Self::give_back`] frees it.
    pub(crate) fn take(&mut self) -> io::Result<UarPage> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let index = self.free.pop_front().ok_or(io::ErrorKind::OutOfMemory)?;
        self.page(index)
    }

    /// As [`Self::take`], for the page at an offset of the file; `None` if it is taken, or if no page is there.
    pub(crate) fn take_at(&mut self, offset: u64) -> io::Result<Option<UarPage>> {
        let index = (offset / UAR_PAGE as u64).checked_sub(FIRST as u64);
        let Some(index) = index.filter(|index| *index < u64::from(LIMITS.max_qp)) else { return Ok(None) };
        self.cover(offset + UAR_PAGE as u64)?;
        let Some(place) = self.free.iter().position(|free| *free as u64 == index) else { return Ok(None) };
        self.free.remove(place);
        self.page(index as usize).map(Some)
    }

    fn page(&self, index: usize) -> io::Result<UarPage> {
        let piece = self.pieces.get(index / PIECE).ok_or(io::ErrorKind::OutOfMemory)?;
        let page = UarPage { base: piece.base().wrapping_add(index % PIECE * UAR_PAGE), index };
        page.clear();
        Ok(page)
    }

    /// Makes the file at least `len` bytes long.
    pub(crate) fn cover(&mut self, len: u64) -> io::Result<()> {
        while (((FIRST + self.pieces.len() * PIECE) * UAR_PAGE) as u64) < len {
            self.grow()?;
        }
        Ok(())
    }

    fn file(&mut self) -> io::Result<&MemoryFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = MemoryFile::new()?;
                let time = file.extend(CLOCK_PAGE * UAR_PAGE, UAR_PAGE)?;
                clock::inform(&file.extend(CLOCK_INFO_PAGE * UAR_PAGE, UAR_PAGE)?);
                let device_memory = file.extend(DEVICE_MEMORY * UAR_PAGE, PAGES * UAR_PAGE)?;
                self.device_memory = Some(device_memory);
                self.clock.show(time);
                file
            }
        };
        Ok(self.file.insert(file))
    }

    fn grow(&mut self) -> io::Result<()> {
        let first = self.pieces.len() * PIECE;
        let piece = self.file()?.extend((FIRST + first) * UAR_PAGE, PIECE * UAR_PAGE)?;
        self.pieces.push(piece);
        self.free.extend(first..first + PIECE);
        Ok(())
    }

    /// Frees a page. Its registers are cleared when it is taken again.
    pub(crate) fn give_back(&mut self, page: UarPage) {
        self.free.push_back(page.index);
    }

    /// Takes adjacent pages of device memory, all zero; `None` if there are not enough. Also returns their first byte,
    /// which is mapped as long as these pages, and its offset in the file.
    pub(crate) fn take_device_memory(
        &mut self,
        count: usize,
    ) -> io::Result<Option<(Range<usize>, *mut u8, u64)>> {
        self.file()?;
        let memory = self.device_memory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let Some(pages) = self.device_pages.take(count) else { return Ok(None) };
        let base = memory.base().wrapping_add(pages.start * UAR_PAGE);
        for offset in (0..pages.len() * UAR_PAGE).step_by(REGISTER) {
            // SAFETY: aligned, and inside the mapped device memory; a program that has freed it may still store to it,
            // which a shared word tolerates.
            unsafe { SharedU64::from_ptr(base.add(offset).cast()) }.store(0, Ordering::Relaxed);
        }
        let offset = ((DEVICE_MEMORY + pages.start) * UAR_PAGE) as u64;
        Ok(Some((pages, base, offset)))
    }

    /// Frees the pages of device memory from `first` on. Returns false if they are not taken.
    pub(crate) fn give_back_device_memory(&mut self, first: usize) -> bool {
        self.device_pages.give_back(first)
    }

    /// Returns a descriptor of the file, which may have no page yet.
    pub(crate) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.file()?.descriptor()
    }
}

/// The offset of a doorbell register: aligned, and inside its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(usize);

impl Register {
    pub(crate) fn new(offset: usize) -> Result<Self, InvalidValue> {
        if offset.is_multiple_of(REGISTER) && offset <= UAR_PAGE - REGISTER {
            return Ok(Register(offset));
        }
        let limit = "a multiple of 8, at most 4088: the registers of a page of 4096 bytes (UAR_DOORBELLS, UAR_CQ_ARM)";
        Err(InvalidValue { what: "offset of a doorbell register", value: offset as u64, limit })
    }

    pub(crate) fn offset(self) -> usize {
        self.0
    }
}

const REGISTER: usize = size_of::<u64>();

/// A page of doorbell registers. It is mapped as long as the [`UarPages`] that it was taken from.
pub(crate) struct UarPage {
    base: *mut u8,
    index: usize,
}

// SAFETY: an address; any thread may access the registers, as shared words.
unsafe impl Send for UarPage {}

impl UarPage {
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn offset(&self) -> u64 {
        ((FIRST + self.index) * UAR_PAGE) as u64
    }

    pub(crate) fn word(&self, register: Register) -> RegisterWord {
        RegisterWord(self.base.wrapping_add(register.offset()).cast())
    }

    fn clear(&self) {
        let all = (0..UAR_PAGE).step_by(REGISTER).map(Register);
        all.for_each(|register| self.word(register).shared().store(0, Ordering::Relaxed));
    }
}

/// The word of a register. It is mapped as long as its page.
pub(crate) struct RegisterWord(*mut u64);

// SAFETY: an address, as that of a page.
unsafe impl Send for RegisterWord {}

impl RegisterWord {
    fn shared(&self) -> &SharedU64 {
        // SAFETY: aligned, and inside the page (`Register`), which is mapped as long as the engine has pages; programs
        // and streams store to it concurrently, which a shared word tolerates.
        unsafe { SharedU64::from_ptr(self.0) }
    }

    /// Takes the value of a register and clears it in one exchange, so that no doorbell is lost. Acquire: the records
    /// and entries that the doorbell announces are visible.
    pub(crate) fn take(&self) -> Option<u64> {
        let register = self.shared();
        // A load is much cheaper than an exchange, and nearly always finds 0.
        if register.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let value = register.swap(0, Ordering::Acquire);
        (value != 0).then_some(value)
    }
}

/// Number of pages of device memory, which programs map and register.
pub(crate) const PAGES: usize = LIMITS.device_memory as usize / UAR_PAGE;

#[derive(Debug, Default)]
pub(crate) struct DevicePages {
    taken: Vec<Range<usize>>,
}

impl DevicePages {
    /// Takes adjacent pages, at least one. Returns `None` if there are not enough.
    pub(crate) fn take(&mut self, count: usize) -> Option<Range<usize>> {
        let count = count.max(1);
        let last = PAGES.checked_sub(count)?;
        let is_free = |pages: &Range<usize>| {
            self.taken.iter().all(|taken| taken.end <= pages.start || pages.end <= taken.start)
        };
        let found = (0..=last).map(|first| first..first + count).find(is_free)?;
        self.taken.push(found.clone());
        Some(found)
    }

    /// Frees the pages from `first` on. Returns false if they are not taken.
    pub(crate) fn give_back(&mut self, first: usize) -> bool {
        let place = self.taken.iter().position(|taken| taken.start == first);
        place.map(|place| self.taken.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn at(offset: usize) -> Register {
        Register::new(offset).unwrap()
    }

    #[test]
    fn a_doorbell_is_taken_once() {
        let mut pages = UarPages::default();
        let page = pages.take().unwrap();
        assert_eq!(page.word(at(0x800)).take(), None);
        page.word(at(0x800)).shared().store(7, Ordering::Release);
        assert_eq!(
            (page.word(at(0x800)).take(), page.word(at(0x800)).take(), page.word(at(0x900)).take()),
            (Some(7), None, None)
        );
    }

    #[test]
    fn a_register_lies_inside_its_page() {
        for offset in [0, 8, 0x20, 4088] {
            assert_eq!(Register::new(offset).unwrap().offset(), offset);
        }
        for offset in [1, 4, 4084, 4089, 4096, 1 << 44, usize::MAX, usize::MAX - 7] {
            let error = Register::new(offset).unwrap_err();
            assert_eq!(error.value, offset as u64);
            assert!(error.to_string().contains("at most 4088"), "{error}");
        }
    }

    #[test]
    fn pages_are_pieces_of_one_file_and_come_back_empty() {
        let mut pages = UarPages::default();
        let taken: Vec<UarPage> = (0..PIECE + 2).map(|_| pages.take().unwrap()).collect();
        let mut bases: Vec<usize> = taken.iter().map(|page| page.base() as usize).collect();
        bases.sort_unstable();
        assert!(bases.windows(2).all(|pair| pair[1] - pair[0] >= UAR_PAGE), "no two overlap");
        for page in [&taken[0], &taken[PIECE + 1]] {
            let (file, offset) = (pages.descriptor().unwrap(), page.offset());
            page.word(at(0xb00)).shared().store(9, Ordering::Release);
            let mut word = [0u8; 8];
            // SAFETY: room for 8 bytes.
            let got = unsafe {
                libc::pread(file.as_raw_fd(), word.as_mut_ptr().cast(), 8, offset as libc::off_t + 0xb00)
            };
            assert_eq!((got, u64::from_ne_bytes(word)), (8, 9));
        }
        let last = taken.into_iter().next_back().unwrap();
        let (base, index) = (last.base(), last.index);
        pages.give_back(last);
        let again =
            std::iter::repeat_with(|| pages.take().unwrap()).find(|page| page.index == index).unwrap();
        assert_eq!((again.base(), again.word(at(0xb00)).take()), (base, None));
    }

    #[test]
    fn pages_are_taken_once() {
        let mut pages = DevicePages::default();
        assert_eq!((pages.take(3), pages.take(PAGES - 3)), (Some(0..3), Some(3..PAGES)));
        assert_eq!(pages.take(1), None);
        assert!(pages.give_back(0) && !pages.give_back(0) && !pages.give_back(4));
        assert_eq!((pages.take(4), pages.take(2), pages.take(0)), (None, Some(0..2), Some(2..3)));
        assert_eq!(DevicePages::default().take(PAGES + 1), None);
    }
}
