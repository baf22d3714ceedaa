//! The thread that looks at a master while it holds sends.

use super::{Master, State};
use crate::qp::QueuePairInner;
use crate::qp::checker::CHECKER;
use crate::qp::trigger::TriggerInner;
use crate::queue::FailureCause;
use crate::util::poller::{Polled, Task};
use std::sync::Arc;

/// A trigger whose master holds sends.
struct Watch(Arc<TriggerInner>);

impl State {
    /// Has the library's thread look, as long as anything is held.
    pub(super) fn watch(&mut self, trigger: &Arc<TriggerInner>) {
        if !std::mem::replace(&mut self.is_watched, true) {
            CHECKER.add(Arc::new(Watch(trigger.clone())));
        }
    }

    /// The slaves whose sends are held, but those that are being destroyed.
    fn victims(&self) -> Vec<Arc<QueuePairInner>> {
        let numbers = self.held.slaves();
        let slaves = self.slaves.iter().filter(|(number, _)| numbers.binary_search(number).is_ok());
        slaves.filter_map(|(_, slave)| slave.upgrade()).collect()
    }
}

impl Task for Watch {
    fn poll(&self) -> Polled {
        self.0.master.as_ref().map_or(Polled::Done, |master| master.look(&self.0))
    }
}

impl Master {
    fn look(&self, trigger: &TriggerInner) -> Polled {
        let mut state = self.state.lock();
        let progress = state.collect();
        if state.held.is_empty() {
            state.is_watched = false;
            return Polled::Done;
        }
        if state.is_broken {
            drop(state);
            self.fail_slaves(trigger);
            return Polled::Progress;
        }
        // Behind the last send, so that the thread learns of its release, and sleeps.
        if state.markers == 0 {
            state.mark();
        }
        if progress { Polled::Progress } else { Polled::Nothing }
    }

    /// Fails the slaves whose sends are held, as nothing releases them any more, and starts the queue
    /// again. The locks of the slaves come before this one's, so it is not held meanwhile; with sends
    /// held, a broken queue is left alone.
    fn fail_slaves(&self, trigger: &TriggerInner) {
        let state = self.state.lock();
        let (starts, numbers, victims) = (state.starts, state.held.slaves(), state.victims());
        drop(state);
        for victim in &victims {
            if let Err(error) = victim.abort_for(FailureCause::Master) {
                tracing::error!(%error, qpn = victim.number, "a queue pair whose master has failed could not be aborted");
            }
        }
        // Perhaps the last handles, whose drop takes the lock.
        drop(victims);
        let mut state = self.state.lock();
        // Otherwise all of them were reset meanwhile, and the queue was started for others.
        if state.starts == starts && state.is_broken {
            state.held.remove(&numbers);
            if let Err(error) = self.start(&mut state, trigger) {
                tracing::warn!(%error, "the master of a trigger has no queue");
            }
        }
    }
}
