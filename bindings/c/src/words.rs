//! The library's texts in the words of C: they name calls of Rust, for programs in Rust.

/// Names of Rust in messages, and their replacements.
const NAMES: [(&str, &str); 9] = [
    ("PreparedSend::into_ticket", "gdsync_send_ticket"),
    ("QueuePairConfig::trigger", "gdsync_trigger_create_qp"),
    ("Team::allocate", "gdsync_segment_allocate"),
    ("Team::shrink", "gdsync_team_shrink"),
    ("TeamConfig::queues", "queues of gdsync_team_attr_t"),
    ("call connect() first", "call gdsync_bootstrap_connect, or gds_modify_qp, first"),
    ("complete() it", "call gdsync_request_complete"),
    ("go_on of the stream", "gdsync_stream_go_on"),
    ("poll it dry and reset() it, or make a new one", "poll it until it is empty, and make another"),
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
    use super::NAMES;

    /// Calls whose errors have the names: no entry is one that no call of C meets.
    const PROGRAMS: [&str; 2] = [include_str!("../tests/c/words.c"), include_str!("../tests/c/teams.c")];

    #[test]
    fn a_program_of_c_meets_every_name() {
        for (rust, c) in NAMES {
            assert!(PROGRAMS.iter().any(|program| program.contains(c)), "{rust}");
        }
    }
}
