//! Watches: memory with bytes that have not come yet, or that nothing has ordered yet for the program.
//! [`Checks::WATCH`](super::config::Checks::WATCH) asks for that.

use crate::os::watch::{self, Watched};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of descriptions that a card keeps: a report may come after the end of its watch.
const KEPT: usize = 1024;

/// The watches of a card.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    is_on: bool,
    /// Ids, queue pairs and descriptions of the last watches.
    last: VecDeque<(u64, u32, String)>,
}

/// Something that has not come yet, as a program's user knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missing {
    /// A message that it receives.
    Message(u32),
    /// The result of a request.
    Result(u32),
}

impl Missing {
    fn describe(self, place: u64, len: usize) -> String {
        match self {
            Missing::Message(number) => format!(
                "the {len} bytes at {place:#x} of message {number}, which has not come whole: wait for the completion of its \
                 receive or of a later one, or poll a flag that its sender posts when it has polled the completion"
            ),
            Missing::Result(number) => format!(
                "the {len} bytes at {place:#x} for the result of request {number}, which has not completed: poll its \
                 completion first"
            ),
        }
    }
}

impl Watches {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn switch_on(&mut self) {
        self.is_on = true;
    }

    /// Returns the queue pair and the description of a watch.
    pub(super) fn description(&self, id: u64) -> Option<(u32, String)> {
        let known = self.last.iter().find(|(of, ..)| *of == id)?;
        Some((known.1, known.2.clone()))
    }

    /// Watches memory of the program. `None` if it is not watched, or cannot be.
    pub(crate) fn begin(&mut self, qpn: u32, what: Missing, at: *mut u8, len: usize) -> Option<Watched> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if !self.is_on {
            return None;
        }
        let (at, id) = (at as usize, NEXT.fetch_add(1, Ordering::Relaxed));
        let watched = watch::watch(at..at.checked_add(len)?, id)?;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((id, qpn, what.describe(at as u64, len)));
        Some(watched)
    }
}
