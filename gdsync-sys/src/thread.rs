//! Starting threads inside a program.

use parking_lot::{Condvar, Mutex};
use std::hint::black_box;
use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread. Returns after the thread has made its first allocations: the C library's per-thread allocator
/// state, and the thread-exit registration of a thread's first wait for a `parking_lot` lock.
///
/// Both map and unmap memory. Open MPI, UCX and libfabric patch the code of `munmap` and similar functions during
/// their initialisation, when no other thread may execute it: they assume that the program has not started threads
/// yet. The calling thread is not inside such a library until this function returns.
///
/// # Errors
/// The operating system's, if it cannot start a thread.
pub fn start(builder: Builder, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (ready, is_ready) = sync_channel(1);
    let thread = builder.spawn(move || {
        // SAFETY: the block is freed by the allocator that returned it; `free` accepts null.
        unsafe { libc::free(black_box(libc::malloc(64))) };
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::ZERO);
        if ready.send(()).is_ok() {
            drop(ready);
            body();
        }
    })?;
    // An error means that the thread has ended.
    let _ = is_ready.recv();
    Ok(thread)
}
