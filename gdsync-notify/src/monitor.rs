//! The thread of a team that finds dead ranks, and releases what waits for them.

use crate::connections::Connections;
use crate::error::NotifyError;
use gdsync::Error;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

const NAME: &str = "gdsync-ranks";
/// Longest time between two looks for messages of other ranks.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two looks while notifications are held released: a stream may wait for one that it
/// has just cleared.
const HOLD: Duration = Duration::from_millis(1);

/// Starts the thread. It ends with the connections, which it keeps alive during a look only.
pub(crate) fn start(connections: &Arc<Connections>) -> Result<JoinHandle<()>, NotifyError> {
    let watched = Arc::downgrade(connections);
    let started = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || run(&watched));
    started.map_err(|source| NotifyError::Device(Error::Thread { name: NAME, source }))
}

fn run(watched: &Weak<Connections>) {
    let Some(life) = watched.upgrade().map(|connections| connections.life.clone()) else { return };
    let mut period = Duration::ZERO;
    while life.wait(period) {
        // The connections are kept for this look only.
        let Some(connections) = watched.upgrade() else { return };
        connections.bring_back();
        let mut control = connections.control.lock();
        control.poll(&life);
        period = control.look_period().min(LOOK);
        drop(control);
        if !life.lost().is_empty() && connections.settle() {
            period = period.min(HOLD);
        }
    }
}
