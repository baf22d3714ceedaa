//! Stack for the library's work: the threads of programs may have as little as `PTHREAD_STACK_MIN`, which is enough for
//! system calls.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::thread::Builder;

/// Bytes that the work of a call may need.
const ROOM: usize = 128 << 10;
/// Bytes of a thread that does the work of one with less.
const OWN: usize = 1 << 20;

thread_local! {
    /// The lowest address of the thread's stack; 0 before the first call.
    static LOWEST: Cell<usize> = const { Cell::new(0) };
}

/// Returns the lowest address of the calling thread's stack; 1 if it is unknown.
fn lowest() -> usize {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut base, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: valid places; the attributes are initialized by the first call, and then destroyed.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return 1;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &mut base, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    base.addr().max(1)
}

/// Runs `work`, on a stack with room for it. Another thread runs it if the calling thread has too little: its signals
/// stay with the calling thread.
#[inline(never)]
pub(super) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let mark = 0u8;
    let lowest = LOWEST.with(|known| {
        if known.get() == 0 {
            known.set(lowest());
        }
        known.get()
    });
    // A program's own stack (makecontext) is not that of its thread.
    let left = (&raw const mark).addr().checked_sub(lowest);
    if left.is_none_or(|left| left >= ROOM) {
        return work();
    }
    // SAFETY: valid places; the mask of the calling thread is restored below.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let mut place = Some(work);
    let result = std::thread::scope(|scope| {
        let run = || place.take().map(|work| work());
        let thread = Builder::new().stack_size(OWN).spawn_scoped(scope, run).ok();
        thread.and_then(|thread| thread.join().ok().flatten())
    });
    // SAFETY: a valid set, which was this thread's.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    match (result, place) {
        (Some(result), _) => result,
        // Without a thread, the stack may still be enough.
        (None, Some(work)) => work(),
        (None, None) => std::process::abort(),
    }
}
