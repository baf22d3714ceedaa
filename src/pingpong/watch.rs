//! Notices failures while a side's own thread, or its stream, waits.
//!
//! A wait for a flag that the other side writes ends by that write alone. So a second thread looks
//! now and then whether a send has failed, here or there, and ends the waits if one has.

use crate::failure::Failure;
use crate::sides::Connection;
use softhca::Speed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks: seldom, as a look takes CPU time from what is measured.
const LOOK: Duration = Duration::from_millis(10);
/// How long an exchange may take on a transport that loses messages without an error, at the speed of hardware's
/// time-outs; longer by the time of its bytes at [`SLOWEST`].
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per second of the slowest network.
const SLOWEST: u64 = 1 << 20;

/// The thread that watches a connection. It ends when this is dropped, or after a failure.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `lossy`: the size of a message, where the transport may lose one.
    pub(super) fn start(connection: Arc<Connection>, lossy: Option<u64>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let patience = Speed::from_environment()?.of(PATIENCE);
        let patience = lossy.map(|size| patience + Duration::from_secs(size / SLOWEST));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("pingpong-watch".to_owned())
            .spawn(move || watch(&connection, patience, &stopped))?;
        Ok(Watch { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It panics nowhere; if it did, the message would be on stderr.
            let _ = thread.join();
        }
    }
}

fn watch(connection: &Connection, patience: Option<Duration>, stop: &AtomicBool) {
    let (mut sent, mut since) = (connection.sent(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        connection.read_events();
        let failed = connection.collect_sends().is_err();
        if connection.sent() != sent {
            (sent, since) = (connection.sent(), Instant::now());
        }
        if let Some(patience) = patience.filter(|patience| since.elapsed() > *patience) {
            connection.error.set(|| {
                format!(
                    "no message has come for {patience:?}: this transport loses messages without an error"
                )
            });
        } else if !failed {
            std::thread::sleep(LOOK);
            continue;
        }
        if !connection.error.has_cause() && !connection.has_failed() {
            // The other side has failed. Aborting would flush the completion that says why.
            connection.find_cause();
        }
        if let Err(failure) = connection.release() {
            connection.error.set(|| failure.to_string());
        }
        return;
    }
}
