//! The library's texts in the words of C: they name calls of Rust, for programs in Rust.

/// Names of Rust in messages, and their replacements.
const NAMES: [(&str, &str); 14] = [
    ("Access::LOCAL_WRITE", "IBV_ACCESS_LOCAL_WRITE"),
    ("ConnectionKind::Each", "GDSYNC_CONNECTIONS_EACH"),
    ("PreparedSend::into_ticket", "gdsync_send_ticket"),
    ("QueuePairConfig::trigger", "gdsync_trigger_create_qp"),
    ("Team::allocate", "gdsync_segment_allocate"),
    ("Team::members", "the team's ranks"),
    ("Team::shrink", "gdsync_team_shrink"),
    ("TeamConfig::queues", "queues of gdsync_team_attr_t"),
    ("WorkRequest::to", "wr.ud of the work request"),
    ("call connect() first", "call gdsync_bootstrap_connect, or gds_modify_qp, first"),
    ("complete() it", "call gdsync_request_complete"),
    ("drop it and prepare it again", "cancel it (gdsync_cancel_send) and prepare it again"),
    ("poll it dry and reset() it, or make a new one", "poll it until it is empty, and make another"),
    ("share one that CompletionQueue::new has made", "use another one"),
];

/// Replaces names of Rust by those of C.
pub(crate) fn of_c(mut text: String) -> String {
    for (rust, c) in NAMES {
        if text.contains(rust) {
            text = text.replace(rust, c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::queue::StateError;
    use gdsync_notify::NotifyError;

    #[test]
    fn texts_name_calls_of_c() {
        let text = of_c(StateError::NotConnected { qpn: 7 }.to_string());
        assert_eq!(
            text,
            "queue pair 0x7 is not connected: call gdsync_bootstrap_connect, or gds_modify_qp, first"
        );
        let text = of_c(NotifyError::Queue { queue: 3, queues: 1 }.to_string());
        assert!(text.ends_with("ask for more in queues of gdsync_team_attr_t"), "{text}");
    }
}
