//! The client on a simulated driver, whose "GPU memory" is an array.

use super::driver::{CuContext, CuStream};
use super::*;
use libc::{c_int, c_uint, c_void};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Start of the GPU memory, an address where nothing is mapped.
const BASE: u64 = 1 << 62;
const SIZE: usize = 3 * STAGING;
/// Addresses of managed and of pinned memory.
const MANAGED: u64 = BASE + (1 << 40);
const PINNED: u64 = BASE + (2 << 40);
/// Memory that belongs to no context, of a GPU that does not exist.
const OWNERLESS: u64 = BASE + (3 << 40);
const INVALID_VALUE: c_int = 1;

static BYTES: Mutex<[u8; SIZE]> = Mutex::new([0; SIZE]);
/// Serializes the tests that change the memory.
static ONE: Mutex<()> = Mutex::new(());
static COPIERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// A context handle, which is never dereferenced.
fn context() -> CuContext {
    // SAFETY: the type is a transparent pointer, and these functions never dereference it.
    unsafe { std::mem::transmute::<usize, CuContext>(64) }
}

unsafe extern "C" fn attributes(
    count: c_uint,
    names: *const i32,
    places: *mut *mut c_void,
    at: u64,
) -> c_int {
    for i in 0..count as usize {
        // SAFETY: `Driver::attributes` passes `count` names, and as many places of the attributes' sizes.
        unsafe {
            let place = *places.add(i);
            match *names.add(i) {
                driver::attribute::MEMORY_TYPE => {
                    *place.cast::<u32>() = match at {
                        PINNED => 1,
                        at if at >= BASE => memory_type::DEVICE,
                        _ => 0,
                    }
                }
                driver::attribute::IS_MANAGED => *place.cast::<u8>() = u8::from(at == MANAGED),
                driver::attribute::CONTEXT if at != OWNERLESS => *place.cast::<CuContext>() = context(),
                _ => {}
            }
        }
    }
    0
}

unsafe extern "C" fn range(base: *mut u64, size: *mut usize, at: u64) -> c_int {
    assert_ne!(CURRENT.get(), 0);
    if !(BASE..BASE + SIZE as u64).contains(&at) {
        return INVALID_VALUE;
    }
    // SAFETY: `Driver::range` passes valid places.
    unsafe { (*base, *size) = (BASE, SIZE) };
    0
}

unsafe extern "C" fn retain(_: *mut CuContext, _: c_int) -> c_int {
    101
}

unsafe extern "C" fn push(context: CuContext) -> c_int {
    CURRENT.set(context.address());
    0
}

unsafe extern "C" fn pop(_: *mut CuContext) -> c_int {
    CURRENT.set(0);
    0
}

unsafe extern "C" fn number(_: CuContext, number: *mut u64) -> c_int {
    // SAFETY: `Driver` passes a valid place.
    unsafe { *number = 7 };
    0
}

unsafe extern "C" fn mode(mode: *mut c_int) -> c_int {
    // SAFETY: `Driver` passes a valid place.
    unsafe { *mode = MODE.replace(*mode) };
    0
}

unsafe extern "C" fn stream(_: *mut CuStream, flags: c_uint) -> c_int {
    assert_eq!((CURRENT.get(), flags), (64, 1));
    COPIERS.fetch_add(1, Ordering::SeqCst);
    0
}

unsafe extern "C" fn synchronize(_: CuStream) -> c_int {
    0
}

unsafe extern "C" fn pinned(memory: *mut *mut u8, len: usize, _: c_uint) -> c_int {
    // SAFETY: `Driver` passes a valid place.
    unsafe { *memory = Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr() };
    0
}

unsafe extern "C" fn pin(_: *mut u8, _: usize, _: c_uint) -> c_int {
    INVALID_VALUE
}

/// Returns the part of the array that a copy accesses, if the copy is allowed.
fn place(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at.checked_sub(BASE)?).ok()?;
    (start + len <= SIZE && len <= STAGING && CURRENT.get() == 64 && MODE.get() == 2)
        .then_some(start..start + len)
}

unsafe extern "C" fn to_host(into: *mut u8, from: u64, len: usize, _: CuStream) -> c_int {
    let Some(place) = place(from, len) else { return INVALID_VALUE };
    // SAFETY: the client passes a pinned buffer of STAGING bytes, and `place` limits `len` to that.
    unsafe { into.copy_from_nonoverlapping(BYTES.lock()[place].as_ptr(), len) };
    0
}

unsafe extern "C" fn to_device(to: u64, from: *const u8, len: usize, _: CuStream) -> c_int {
    let Some(place) = place(to, len) else { return INVALID_VALUE };
    // SAFETY: the client passes a pinned buffer of STAGING bytes, and `place` limits `len` to that.
    unsafe { from.copy_to_nonoverlapping(BYTES.lock()[place].as_mut_ptr(), len) };
    0
}

fn client() -> Client {
    let driver = || {
        Some(Driver {
            pointer_attributes: attributes,
            address_range: range,
            retain_primary: retain,
            push,
            pop,
            number,
            capture_mode: mode,
            stream_create: stream,
            stream_synchronize: synchronize,
            host_alloc: pinned,
            host_register: pin,
            to_host,
            to_device,
        })
    };
    Client { driver, state: OnceLock::new() }
}

#[test]
fn gpu_memory_is_copied_by_the_driver_in_pieces_that_fit() {
    let (_one, client) = (ONE.lock(), client());
    let region = client.acquire(BASE, SIZE as u64, true).unwrap().unwrap();
    let sent: Vec<u8> = (0..SIZE - 100).map(|i| (i * 7 + i / 251) as u8).collect();
    region.write(BASE + 33, &sent).unwrap();
    let mut got = vec![0; sent.len()];
    region.read(BASE + 33, &mut got).unwrap();
    assert!(sent == got);
    // The thread's context and capture mode are restored.
    assert_eq!((CURRENT.get(), MODE.get()), (0, 0));
    // A second region shares the stream and the buffer.
    let before = COPIERS.load(Ordering::SeqCst);
    client.acquire(BASE + 4096, 1, false).unwrap().unwrap().read(BASE + 4096, &mut [0]).unwrap();
    assert_eq!(COPIERS.load(Ordering::SeqCst), before);
    let refused = region.read(BASE + SIZE as u64, &mut [0]).unwrap_err();
    assert_eq!(refused.to_string(), "cuMemcpyDtoHAsync returned CUDA error 1");
    let refused = region.write(BASE + SIZE as u64, &[0]).unwrap_err();
    assert_eq!(refused.to_string(), "cuMemcpyHtoDAsync returned CUDA error 1");
}

#[test]
fn only_memory_of_a_card_is_copied_without_a_wait_for_each_copy() {
    let (_one, client) = (ONE.lock(), client());
    let region = client.acquire(BASE, 64, true).unwrap().unwrap();
    let mut host = [0; 64];
    // SAFETY: the bytes live to the end of the test; neither copy begins.
    let begun = unsafe {
        [region.begin_read(BASE, host.as_mut_ptr(), 64), region.begin_write(BASE, host.as_ptr(), 64)]
    };
    assert_eq!(begun, [Ok(AsyncCopy::Unsupported), Ok(AsyncCopy::Unsupported)]);
    assert_eq!((region.finish(), CURRENT.get(), MODE.get()), (Ok(()), 0, 0));
}

#[test]
fn a_failure_is_told_to_every_region_that_was_waited_for_and_once() {
    let mut copies = Copies { begun: BTreeSet::from([1, 2]), failed: BTreeMap::new() };
    let lost = || Err(PeerMemoryError::new("lost"));
    assert_eq!(copies.end(3, || unreachable!("it has begun none")), Ok(()));
    assert_eq!(copies.end(1, lost), lost());
    for outcome in [lost(), Ok(())] {
        assert_eq!(copies.end(2, || unreachable!("all have ended")), outcome);
    }
    copies.begun.insert(1);
    assert_eq!(copies.end(1, || Ok(())), Ok(()));
}

#[test]
fn a_mapping_takes_all_stores_and_small_loads_and_the_driver_the_rest() {
    let (_one, client) = (ONE.lock(), client());
    client.acquire(BASE, 64, true).unwrap().unwrap();
    let state = client.state().unwrap().clone();
    let copier = state.copiers.lock().values().next().unwrap().clone();
    let mapping = Mapping::stand_in(2 * Mapping::READ_BY_DRIVER).unwrap();
    let end = BASE + 64 + mapping.len() as u64;
    let stores = Some((BASE + 64, Stores::new(Arc::new(mapping))));
    let has_copies = AtomicBool::new(false);
    let region = Region { number: 0, state, context: context(), copier, has_copies, stores };
    let sent: Vec<u8> = (0..2 * Mapping::READ_BY_DRIVER).map(|i| (i * 3 + 1) as u8).collect();
    region.write(BASE + 64, &sent).unwrap();
    let mut got = vec![0; Mapping::READ_BY_DRIVER - 1];
    region.read(end - got.len() as u64, &mut got).unwrap();
    assert!(got == sent[sent.len() - got.len()..]);
    // The driver copies from other memory here, which has none of it.
    let mut got = vec![0; sent.len()];
    region.read(BASE + 64, &mut got).unwrap();
    assert!(got != sent);
    // Ranges that begin before the mapping, or end after it.
    for at in [BASE + 60, end - 4] {
        region.write(at, &[1; 8]).unwrap();
        let mut got = [0; 8];
        region.read(at, &mut got).unwrap();
        assert_eq!((got, BYTES.lock()[(at - BASE) as usize]), ([1; 8], 1));
    }
}

#[test]
fn what_the_cpu_reaches_is_not_the_clients() {
    let client = client();
    for at in [4096, PINNED, MANAGED] {
        assert!(client.acquire(at, 64, true).unwrap().is_none(), "{at:#x}");
    }
    let without = Client { driver: || None, state: OnceLock::new() };
    assert!(without.acquire(BASE, 64, true).unwrap().is_none());
}

#[test]
fn ranges_that_leave_their_allocation_are_refused() {
    let client = client();
    let refused = |at, len| client.acquire(at, len, true).unwrap_err().to_string();
    let end = BASE + SIZE as u64;
    // The last GPU page belongs to its allocation.
    let pages = end.next_multiple_of(GPU_PAGE);
    assert!(client.acquire(end - 8, pages - end + 8, true).unwrap().is_some());
    let long = pages - end + 9;
    assert!(refused(end - 8, long).contains("leave the"), "{}", refused(end - 8, long));
    assert!(refused(BASE, u64::MAX).contains("leave the"));
    assert_eq!(refused(end, 1), "cuMemGetAddressRange returned CUDA error 1");
    assert_eq!(refused(OWNERLESS, 1), "cuDevicePrimaryCtxRetain returned CUDA error 101");
    assert_eq!(CURRENT.get(), 0);
}
