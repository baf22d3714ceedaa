//! What ends a sleep besides an entry.

use crate::qp::{CompletionChannel, WaitError};
use crate::queue::StateError;
use crate::{CompletionQueue, CompletionQueueConfig, Device};
use std::time::Duration;

/// Nothing here takes longer, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn sleepers_are_woken_where_the_card_writes_nothing_any_more() {
    let device = Device::software().unwrap();
    let channel = CompletionChannel::new(&device).unwrap();
    let config = CompletionQueueConfig::from(8).channel(&channel);
    let (lost, other) =
        (CompletionQueue::new(&device, config).unwrap(), CompletionQueue::new(&device, config).unwrap());
    std::thread::scope(|scope| {
        // Two threads of the queue, of which one reads, or a third one does for both.
        let sleepers = [(); 2].map(|()| scope.spawn(|| lost.wait(LONG)));
        let bystander = scope.spawn(|| other.wait(Duration::from_millis(100)));
        std::thread::sleep(Duration::from_millis(10));
        lost.inner.lose();
        for sleeper in sleepers {
            let ended = sleeper.join().unwrap();
            let expected = WaitError::State(StateError::CompletionQueueLost { cqn: lost.inner.number() });
            assert_eq!(ended.unwrap_err().to_string(), expected.to_string());
        }
        assert_eq!(bystander.join().unwrap().unwrap(), None);
    });
}
