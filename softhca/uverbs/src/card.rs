//! The cards of this process: one for each open device, shared by the device's contexts.

use crate::cuda;
use crate::errno::{Errno, Result};
use crate::events::routes::Routes;
use crate::events::wake::Wake;
use crate::log;
use crate::paths;
use parking_lot::Mutex;
use softhca::card::{Card, CardError, Counters, Event, LinkLayer};
use softhca::devices::{MAX_DEVICES, devices_from_environment};
use softhca::sysfs;
use std::sync::{Arc, OnceLock, Weak};

/// A running card, and the routes of its events.
#[derive(Debug)]
pub(crate) struct OpenCard {
    pub(crate) card: Card,
    pub(crate) routes: Arc<Routes>,
    pub(crate) index: usize,
}

/// Returns the counters of a device's port; `None` in a program that `gdsync soft` did not start.
pub(crate) fn counters(index: usize) -> Option<Arc<Counters>> {
    static OPEN: [OnceLock<Arc<Counters>>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    let open = OPEN.get(index)?;
    if let Some(counters) = open.get() {
        return Some(counters.clone());
    }
    let path = sysfs::counters(paths::folder()?, index);
    let counters = Counters::in_file(&path)
        .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "packets are not counted"))
        .ok()?;
    Some(open.get_or_init(|| Arc::new(counters)).clone())
}

/// Says why a device does not open, as the program sees only the error number, and returns that number.
pub(crate) fn cannot_start(error: CardError) -> Errno {
    log::say(&error.to_string());
    error.into()
}

/// The running cards. Contexts keep a card running; this list does not.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    running: Mutex<Vec<Weak<OpenCard>>>,
    /// Raised when a management datagram arrives, once an agent handles them.
    pub(crate) management: Arc<OnceLock<Wake>>,
}

impl Cards {
    /// Returns the running cards; none while a card is being started, during which this may be called, too.
    pub(crate) fn running(&self) -> Vec<Arc<OpenCard>> {
        let running = self.running.try_lock();
        running.map_or_else(Vec::new, |running| running.iter().filter_map(Weak::upgrade).collect())
    }

    /// Returns the card of a device, and starts it if needed.
    pub(crate) fn open(&self, index: usize) -> Result<Arc<OpenCard>> {
        let mut running = self.running.lock();
        let found = running.iter().filter_map(Weak::upgrade).find(|card| card.index == index);
        found.map_or_else(|| self.start(&mut running, index), Ok)
    }

    /// Starts a card of a device, even if one is running.
    pub(crate) fn open_another(&self, index: usize) -> Result<Arc<OpenCard>> {
        self.start(&mut self.running.lock(), index)
    }

    fn start(&self, running: &mut Vec<Weak<OpenCard>>, index: usize) -> Result<Arc<OpenCard>> {
        let devices = devices_from_environment().map_err(|error| log::refuse(&error))?;
        let link: LinkLayer = *devices.get(index).ok_or(Errno::NO_ENTRY)?;
        let routes = Arc::new(Routes::default());
        cuda::register();
        let (sink, management) = (routes.clone(), self.management.clone());
        let deliver = move |event| match event {
            Event::Management => _ = management.get().map(Wake::raise),
            event => sink.deliver(event),
        };
        let card = Card::start_device(index, link, Box::new(deliver)).map_err(cannot_start)?;
        if let Some(counters) = counters(index) {
            card.attach_counters(counters);
        }
        let card = Arc::new(OpenCard { card, routes, index });
        running.retain(|card| card.strong_count() > 0);
        running.push(Arc::downgrade(&card));
        Ok(card)
    }
}
