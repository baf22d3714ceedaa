//! Reports of who touches memory that a card watches.

use super::worker::Shared;
use crate::os::symbol::place_of;
use crate::os::watch::{self, Touch};
use gdsync_sys::thread;
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Instant;

/// The field of the diagnostics.
const FIELD: &str = "read of what is not there yet";

/// The cards that watch.
static CARDS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Switches the watches of a card on, and starts the thread that reports for all cards of the process.
pub(super) fn start(card: &Arc<Shared>) -> io::Result<()> {
    card.engine.lock().resources.watches.switch_on();
    CARDS.lock().push(Arc::downgrade(card));
    if watch::become_reporter() {
        thread::start(Builder::new().name("gdsync-watch".to_owned()), || {
            while let Some(touch) = watch::next_touch() {
                report(touch);
                watch::reported(touch);
            }
        })?;
    }
    Ok(())
}

fn report(touch: Touch) {
    let mut cards = CARDS.lock();
    cards.retain(|card| card.strong_count() > 0);
    for card in cards.iter().filter_map(Weak::upgrade) {
        let mut engine = card.engine.lock();
        if let Some((qpn, what)) = engine.resources.watches.description(touch.id) {
            let code = match place_of(touch.code) {
                Some(place) => place.to_string(),
                None => format!("{:#x}", touch.code),
            };
            let comm = fs::read_to_string(format!("/proc/self/task/{}/comm", touch.thread));
            let thread = comm.unwrap_or_default();
            let message = format!(
                "{code} (thread {} {}) touches {:#x}, of {what}",
                touch.thread,
                thread.trim_end(),
                touch.addr
            );
            engine.resources.context(Instant::now()).found(qpn, None, FIELD, message);
        }
    }
}
