//! Threads that the project starts inside of a program.

use parking_lot::{Condvar, Mutex};
use std::hint::black_box;
use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread. Returns once the thread has what the C library's allocator gives each thread at its first use,
/// and what it allocates where a thread waits for a lock of `parking_lot` first: the note that the thread's entry is
/// to be destroyed.
///
/// The allocator maps and unmaps memory for that. Open MPI, UCX and libfabric write over the code of `munmap` and its
/// like while they start, when no thread may run it: they rely on the program, which has started no other thread yet.
/// The thread that calls this one is in no such library until this returns.
///
/// # Errors
/// The system's, if it gives no thread.
pub fn start(builder: Builder, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (ready, is_ready) = sync_channel(1);
    let thread = builder.spawn(move || {
        // SAFETY: the block goes back to the allocator that it is from; null is allowed there.
        unsafe { libc::free(black_box(libc::malloc(64))) };
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::ZERO);
        if ready.send(()).is_ok() {
            drop(ready);
            body();
        }
    })?;
    // An error is the thread's end.
    let _ = is_ready.recv();
    Ok(thread)
}
