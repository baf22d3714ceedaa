//! The state that the handles and queues of a team share.

use crate::bootstrap::Bootstrap;
use crate::peer::Peer;
use gdsync::ProtectionDomain;
use parking_lot::Mutex;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The peers of each queue, in the order of their ranks.
    pub(crate) queues: Vec<Vec<Peer>>,
    /// How long a post waits for room in a queue.
    pub(crate) timeout: Duration,
    pub(crate) bootstrap: Mutex<Bootstrap>,
    pub(crate) pd: ProtectionDomain,
}
