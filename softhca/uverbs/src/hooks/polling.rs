//! Threads that poll an empty completion queue do the card's work, where cores are few: the thread that polls occupies
//! the core that the card's thread waits for.
//!
//! `ibv_poll_cq` is inline in the program. It calls the provider through the context's table of functions, which
//! `ibv_open_device` returns; the library replaces that one entry.

use super::next::Next;
use super::with_room;
use crate::errno::{Errno, preserving};
use crate::process;
use gdsync_sys::verbs::{OPS_POLL_CQ, PollCq, ibv_context, ibv_cq, ibv_device, ibv_wc};
use libc::{c_int, c_void};
use softhca::card::{Card, has_few_cores};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The provider's function for polling.
static POLL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The context for whose card this thread has worked since it found completions there, or -1.
    static ASSISTED: Cell<c_int> = const { Cell::new(-1) };
}

/// Polls, and if there is no completion, works for the card and polls again.
///
/// # Safety
/// As `ibv_poll_cq`.
unsafe extern "C" fn poll(cq: *mut ibv_cq, most: c_int, completions: *mut ibv_wc) -> c_int {
    // SAFETY: `assist_polls` stored a function of this type before it installed this one.
    let poll: PollCq = unsafe { std::mem::transmute(POLL.load(Ordering::Relaxed)) };
    // SAFETY: the caller vouches for the arguments.
    let poll = || unsafe { poll(cq, most, completions) };
    // SAFETY: a queue has a context as long as it exists, which the caller guarantees.
    let fd = unsafe { (*(*cq).context).cmd_fd };
    let found = poll();
    let found = if found == 0 {
        ASSISTED.set(fd);
        if with_card(fd, Card::assist) == Some(true) { poll() } else { 0 }
    } else {
        found
    };
    // A program that always finds something pays for no call.
    if found > 0 && ASSISTED.get() == fd {
        ASSISTED.set(-1);
        with_card(fd, Card::end_assist);
    }
    found
}

/// Calls a function with the card of a context, if there is one.
fn with_card<R: Send>(fd: c_int, call: impl FnOnce(&Card) -> R + Send) -> Option<R> {
    preserving(|| with_room(|| process::context(fd).map(|context| call(context.card()))))
}

/// Lets the threads that poll queues of the context work for its card.
///
/// # Safety
/// An open context of libibverbs that no other thread uses yet.
unsafe fn assist_polls(context: *mut ibv_context) {
    // SAFETY: the caller guarantees a context.
    let (entry, fd) = unsafe { (&mut (*context).ops[OPS_POLL_CQ], (*context).cmd_fd) };
    if entry.is_null() || process::context(fd).is_none() {
        return;
    }
    let ours = poll as *mut c_void;
    // All contexts of one provider have one function. Those of another poll as they did.
    let first = POLL.compare_exchange(ptr::null_mut(), *entry, Ordering::AcqRel, Ordering::Acquire);
    if first.is_ok() || first == Err(*entry) {
        *entry = ours;
    }
}

/// `ibv_open_device` of libibverbs.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    static NEXT: Next = Next::new(c"ibv_open_device");
    let mut address = NEXT.address();
    if address.is_null() {
        // The program has loaded libibverbs for one of its libraries only.
        let name = c"libibverbs.so.1";
        // SAFETY: C strings; the library is loaded, since its device is here.
        address = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, c"ibv_open_device".as_ptr()) }
        };
    }
    if address.is_null() {
        Errno(libc::ENOSYS).set();
        return ptr::null_mut();
    }
    // SAFETY: libibverbs' function of this name has this signature; the caller vouches for the argument.
    let context = unsafe {
        let open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context = std::mem::transmute(address);
        open(device)
    };
    if has_few_cores() && !context.is_null() {
        // SAFETY: libibverbs has just returned the context.
        unsafe { assist_polls(context) };
    }
    context
}
