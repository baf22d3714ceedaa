//! Spans of this process' memory that operations of streams can name.
//!
//! A stream with a separate address space maps memory a *granule* at a time, and must unmap it before it is released.
//! So everything that operations can name is announced here as a span.
//!
//! Mapping a granule may take most of a millisecond. So an address space with streams ([`Span::begin_use`]) maps each
//! granule when it is exposed, before an operation names it. The library's memory is exposed when it is announced.
//! The program's memory, most of which is payload that no operation names, is exposed when a word in it is made
//! ([`Span::expose`]). The first stream of an address space maps every exposed granule.

// Lock order: the list of address spaces in use, then an address space's locks; the list of spans is locked alone.

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The smallest page of any system, in bytes.
const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// Pages of this span alone, mapped as a whole.
    Whole,
    /// Pages of the program, or very many pages: mapped one by one.
    Pages,
    /// GPU memory that is mapped for the CPU, allocated in the context of that id. Streams of that GPU, and of peers
    /// with access, name it by the GPU's address.
    Gpu { ordinal: i32, context: u64, address: u64 },
    /// A page of a card's doorbell registers: MMIO, or ordinary memory of a software card.
    Registers { mmio: bool },
}

/// Called when a span was dropped and every device has unmapped it, for example to release its memory.
pub(crate) type Release = Box<dyn FnOnce() + Send + Sync>;

/// A dropped span that devices may still have mapped. The last device to drop this value releases the memory.
pub(crate) struct DroppedSpan {
    releases: Vec<Release>,
}

impl Drop for DroppedSpan {
    fn drop(&mut self) {
        self.releases.drain(..).for_each(|release| release());
    }
}

/// An address space into which spans are mapped.
pub(crate) trait AddressSpace: Send + Sync {
    /// The granule around `addr` is exposed. May be called repeatedly, and with any lock held except an address
    /// space's.
    fn exposed(&self, span: &Span, addr: u64);

    /// The span was dropped; memory is released when every address space has dropped `gone`. Called with any lock held.
    fn dropped(&self, span: u64, gone: &Arc<DroppedSpan>);
}

/// A span, which is dropped with its last handle.
pub(crate) struct Span {
    pub(crate) id: u64,
    base: u64,
    len: u64,
    pub(crate) kind: SpanKind,
    /// The exposed pages of a span that is mapped page by page: a bit for each [`PAGE`].
    exposed: OnceLock<Box<[AtomicU64]>>,
    releases: Mutex<Vec<Release>>,
    spaces: Mutex<Vec<Weak<dyn AddressSpace>>>,
}

/// An entry of the list of all spans. A handle is upgraded only to be returned to the caller: the drop of the last
/// one would take the list's lock again.
struct Known {
    len: u64,
    kind: SpanKind,
    span: Weak<Span>,
}

/// All spans by first address; several may start at one.
static SPANS: Mutex<BTreeMap<u64, Vec<Known>>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Address spaces with streams.
static IN_USE: RwLock<Vec<Weak<dyn AddressSpace>>> = RwLock::new(Vec::new());

impl Span {
    /// Announces `len` bytes from `base` on. A page of registers that is already announced is shared.
    ///
    /// `release` is called when the span was dropped and no device has it mapped.
    pub(crate) fn announce(base: u64, len: u64, kind: SpanKind, release: Release) -> Arc<Span> {
        let mut spans = SPANS.lock();
        let here = spans.entry(base).or_default();
        let mut shared = here
            .iter()
            .filter(|one| matches!(kind, SpanKind::Registers { .. }) && one.kind == kind && one.len == len);
        let known = shared.find_map(|known| known.span.upgrade());
        let span = known.unwrap_or_else(|| {
            let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
            let (exposed, releases, spaces) = Default::default();
            let span = Arc::new(Span { id, base, len, kind, exposed, releases, spaces });
            here.push(Known { len, kind, span: Arc::downgrade(&span) });
            span
        });
        span.releases.lock().push(release);
        drop(spans);
        if kind != SpanKind::Pages {
            span.announce_exposed(base);
        }
        span
    }

    /// Exposes the page around `addr`, which is in this span: operations may now name a word there.
    #[inline]
    pub(crate) fn expose(&self, addr: u64) {
        if self.kind == SpanKind::Pages {
            self.expose_page(addr);
        }
    }

    fn expose_page(&self, addr: u64) {
        let first = self.base / PAGE;
        let exposed = self.exposed.get_or_init(|| {
            let pages = (self.base + self.len).div_ceil(PAGE) - first;
            (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
        });
        let at = addr / PAGE - first;
        let (Some(bits), bit) = (exposed.get((at / 64) as usize), 1 << (at % 64)) else { return };
        // Relaxed: an address space that `announce_exposed` finds is notified there. Another one begins its use after
        // that has released the lock, and so reads the bits after this store. An operation that names the page maps
        // it anyway.
        if bits.load(Ordering::Relaxed) & bit == 0 && bits.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.announce_exposed(addr);
        }
    }

    /// Under the lock: after [`Self::end_use`], an address space is not notified.
    fn announce_exposed(&self, addr: u64) {
        let in_use = IN_USE.read();
        in_use.iter().filter_map(Weak::upgrade).for_each(|space| space.exposed(self, addr));
    }

    /// An address in each exposed granule.
    fn granules(&self) -> Vec<u64> {
        if self.kind != SpanKind::Pages {
            return vec![self.base];
        }
        let words = self.exposed.get().map_or(&[][..], |exposed| exposed);
        let bits = words.iter().zip(0..).map(|(bits, at)| (bits.load(Ordering::Relaxed), at));
        let pages = bits.filter(|(bits, _)| *bits != 0).flat_map(|(bits, at)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        });
        pages.map(|at| (self.base / PAGE + at) * PAGE).map(|start| start.max(self.base)).collect()
    }

    /// The address space has its first stream: calls [`AddressSpace::exposed`] for every exposed granule, and from
    /// now on for each that is exposed.
    pub(crate) fn begin_use(space: &Arc<impl AddressSpace + 'static>) {
        let weak: Weak<dyn AddressSpace> = Arc::downgrade(space) as _;
        IN_USE.write().push(weak);
        let all: Vec<_> = SPANS.lock().values().flatten().map(|known| known.span.clone()).collect();
        // One at a time: a span that its owner drops meanwhile is dropped after its turn.
        for span in all.iter().filter_map(Weak::upgrade) {
            span.granules().into_iter().for_each(|addr| space.exposed(&span, addr));
        }
    }

    /// Ends the use: [`AddressSpace::exposed`] is not called after this returns.
    pub(crate) fn end_use(space: &Weak<dyn AddressSpace>) {
        IN_USE.write().retain(|known| !known.ptr_eq(space));
    }

    /// The spans that hold `len` bytes from `addr` on: several if the program has wrapped its memory more than once.
    pub(crate) fn find(addr: u64, len: u64) -> Vec<Arc<Span>> {
        let Some(end) = addr.checked_add(len) else { return Vec::new() };
        let spans = SPANS.lock();
        let before = spans
            .range(..=addr)
            .flat_map(|(base, here)| here.iter().map(move |known| (base, known)))
            .filter(|(base, known)| end <= *base + known.len);
        before.filter_map(|(_, known)| known.span.upgrade()).collect()
    }

    /// The part around `addr` that is mapped at once: base and length, in whole pages.
    pub(crate) fn granule(&self, addr: u64, page: u64) -> (u64, u64) {
        match self.kind {
            SpanKind::Pages => (addr & !(page - 1), page),
            SpanKind::Whole | SpanKind::Gpu { .. } | SpanKind::Registers { .. } => {
                let base = self.base & !(page - 1);
                (base, (self.base + self.len).next_multiple_of(page) - base)
            }
        }
    }

    pub(crate) fn notify(&self, space: Weak<dyn AddressSpace>) {
        let mut spaces = self.spaces.lock();
        spaces.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&space));
        spaces.push(space);
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:?} {:#x}+{:#x})", self.kind, self.base, self.len)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut spans = SPANS.lock();
        if let Some(here) = spans.get_mut(&self.base) {
            here.retain(|known| known.span.strong_count() > 0);
            if here.is_empty() {
                spans.remove(&self.base);
            }
        }
        drop(spans);
        let spaces = std::mem::take(self.spaces.get_mut());
        let releases = std::mem::take(self.releases.get_mut());
        let gone = Arc::new(DroppedSpan { releases });
        for space in spaces.iter().filter_map(Weak::upgrade) {
            space.dropped(self.id, &gone);
        }
    }
}

/// For tests: one that begins a use takes the write lock, as it upgrades the spans of other tests and may drop the
/// last handle. One that observes the drop of a span takes the read lock.
#[cfg(test)]
pub(crate) static BEGINS_USE: RwLock<()> = RwLock::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that no mapping has.
    const BASE: u64 = 0xffff_0000_0000_0000;

    #[derive(Default)]
    struct Told(Mutex<Vec<(u64, Arc<DroppedSpan>)>>);

    impl AddressSpace for Told {
        fn exposed(&self, _span: &Span, _addr: u64) {}

        fn dropped(&self, span: u64, gone: &Arc<DroppedSpan>) {
            self.0.lock().push((span, gone.clone()));
        }
    }

    fn nothing() -> Release {
        Box::new(|| ())
    }

    fn found(addr: u64, len: u64) -> Vec<u64> {
        Span::find(addr, len).iter().map(|span| span.id).collect()
    }

    #[test]
    fn all_spans_around_an_address_are_found() {
        let _spans = BEGINS_USE.read();
        let outer = Span::announce(BASE, 0x4000, SpanKind::Pages, nothing());
        let inner = Span::announce(BASE + 0x1000, 0x100, SpanKind::Pages, nothing());
        assert_eq!(found(BASE + 0x1010, 8), [outer.id, inner.id]);
        assert_eq!(found(BASE + 0x10fc, 8), [outer.id]);
        assert_eq!(found(BASE + 0x3ffc, 4), [outer.id]);
        assert!(found(BASE + 0x3ffc, 8).is_empty() && found(BASE - 4, 4).is_empty());
        assert!(found(u64::MAX, 8).is_empty());
        drop(inner);
        assert_eq!(found(BASE + 0x1010, 8), [outer.id]);
        drop(outer);
        assert!(found(BASE + 0x1010, 8).is_empty());
    }

    #[test]
    fn register_pages_are_shared_and_memory_is_not() {
        let _spans = BEGINS_USE.read();
        let (base, registers) = (BASE + 0x10_0000, SpanKind::Registers { mmio: true });
        let (one, two) = (
            Span::announce(base, 4096, registers, nothing()),
            Span::announce(base, 4096, registers, nothing()),
        );
        assert_eq!(one.id, two.id);
        let other = Span::announce(base, 4096, SpanKind::Pages, nothing());
        assert_ne!(one.id, other.id);
        assert_ne!(Span::announce(base, 4096, SpanKind::Pages, nothing()).id, other.id);
    }

    fn counting(released: &Arc<AtomicU64>) -> Release {
        let count = released.clone();
        Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn memory_is_released_when_the_last_device_has_forgotten_it() {
        let _spans = BEGINS_USE.read();
        let (one, two): (Arc<Told>, Arc<Told>) = Default::default();
        let released = Arc::new(AtomicU64::new(0));
        let span = Span::announce(BASE + 0x20_0000, 4096, SpanKind::Whole, counting(&released));
        let id = span.id;
        for told in [&one, &two, &one] {
            span.notify(Arc::downgrade(told) as Weak<dyn AddressSpace>);
        }
        drop(span.clone());
        assert!(one.0.lock().is_empty());
        drop(span);
        assert_eq!(one.0.lock().len(), 1, "told once");
        assert_eq!(one.0.lock().pop().unwrap().0, id);
        assert_eq!(released.load(Ordering::Relaxed), 0);
        two.0.lock().clear();
        assert_eq!(released.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_shares_a_register_page_is_released_with_it() {
        let _spans = BEGINS_USE.read();
        let released = Arc::new(AtomicU64::new(0));
        let share = || {
            let registers = SpanKind::Registers { mmio: false };
            Span::announce(BASE + 0x60_0000, 4096, registers, counting(&released))
        };
        let (one, two) = (share(), share());
        drop(one);
        assert_eq!(released.load(Ordering::Relaxed), 0);
        drop(two);
        assert_eq!(released.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn granules_are_whole_pages() {
        let pages = Span::announce(BASE + 0x30_0010, 0x5000, SpanKind::Pages, nothing());
        assert_eq!(pages.granule(BASE + 0x30_2abc, 0x1000), (BASE + 0x30_2000, 0x1000));
        let whole = Span::announce(BASE + 0x40_0010, 0x5000, SpanKind::Whole, nothing());
        assert_eq!(whole.granule(BASE + 0x40_2abc, 0x1000), (BASE + 0x40_0000, 0x6000));
    }
}
