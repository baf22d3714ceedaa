//! Causes of waits that take long.

use gdsync_status::Survey;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long all processes of the host together may take to say what they know.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);

/// What ends a wait: it says why the wait takes long.
pub trait WaitCause: Debug + Send + Sync {
    /// Says why it has not ended, as far as that is known in this process.
    fn cause(&self) -> Option<String>;

    /// Returns the numbers of this process's queue pairs whose completions, or whose peers' requests, end it.
    fn queue_pairs(&self) -> Vec<u32>;

    /// Returns the end of what would have ended the wait, such as the death of a rank, if nothing does any more. The
    /// stream is locked: this calls none of its functions.
    fn gone(&self) -> Option<Gone> {
        None
    }

    /// Keeps the wait from ending without the awaited event while `hold` is alive and true. A stream with
    /// [`StreamOptions::stop_at_death`](crate::stream::StreamOptions) calls this before it waits.
    fn hold(&self, hold: &Arc<AtomicBool>) {
        let _ = hold;
    }
}

/// The end of what would have ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The rank of a team that is dead; none if it is cut off, or if the team has ended.
    pub rank: Option<u32>,
    /// The reason.
    pub reason: String,
}

/// Says why a wait takes long: what this process knows, and then, as `gdsync top` does, what the processes of this user
/// on this host know about the queue pairs and their peers. `None` if nothing is known.
///
/// It asks these processes, which takes up to 250 ms if one of them does not answer. The caller holds no lock of the
/// library.
pub fn explain(cause: &dyn WaitCause) -> Option<String> {
    let mut known: Vec<String> = cause.cause().into_iter().collect();
    let queue_pairs = cause.queue_pairs();
    if !queue_pairs.is_empty() {
        match Survey::take(ANSWER_LIMIT) {
            Ok(survey) => known.extend(survey.causes(std::process::id(), &queue_pairs)),
            Err(error) => tracing::debug!(%error, "the processes of this host cannot be listed"),
        }
    }
    (!known.is_empty()).then(|| known.join("; "))
}
