//! How processes are named.

use gdsync_status::printable;
use std::fs::File;
use std::io::Read;

/// Characters of a name at most.
const LONGEST: usize = 32;
/// Bytes of a command line that are read: processes may have very long ones.
const MOST: u64 = 4096;

/// The command line of a process, shortened: the program without its folder, and what follows. `?` for one that does not say.
pub(super) fn of_process(pid: u32) -> String {
    let mut words = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        // A process that ends meanwhile has no words any more.
        let _ = file.take(MOST).read_to_end(&mut words);
    }
    of_words(&String::from_utf8_lossy(&words))
}

/// The same of words with a zero behind each.
fn of_words(words: &str) -> String {
    let mut words = words.split('\0').filter(|word| !word.is_empty());
    let Some(program) = words.next() else { return "?".to_owned() };
    let program = program.rsplit('/').next().unwrap_or(program);
    let whole = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    // Names are shown on a terminal, and processes choose them.
    let mut name: String = whole.chars().map(printable).take(LONGEST + 1).collect();
    if name.chars().count() > LONGEST {
        name = name.chars().take(LONGEST - 1).chain(['…']).collect();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_steers_no_terminal() {
        assert_eq!(of_words("/usr/bin/gdsync\0pingpong\0--json\0"), "gdsync pingpong --json");
        assert_eq!(of_words("a\x1b[2J\0"), "a\u{fffd}[2J");
        assert_eq!(of_words(&"x".repeat(100)), "x".repeat(31) + "…");
        assert_eq!(of_words(&"x".repeat(32)), "x".repeat(32));
        assert_eq!([of_words(""), of_process(u32::MAX)], ["?", "?"]);
    }
}
