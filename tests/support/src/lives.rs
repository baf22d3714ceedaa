//! Helpers of tests that live random lives and count what is left.

/// Random numbers by a seed, which is not 0 (xorshift64*).
pub struct Random(pub u64);

impl Random {
    /// Returns a number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Threads of this process other than the library's permanent ones: those of streams, cards and watchdogs end with their
/// objects. (A thread that has just started still bears the name of its parent.)
pub fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end after it was listed.
    let names = all.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| !["gdsync-checked", "gdsync-stores"].contains(&name.trim())).count()
}

/// Returns the seconds of a test (`GDSYNC_LIVES_SECONDS`, 3 by default) and the seed of its first life
/// (`GDSYNC_LIVES_SEED`, 1).
pub fn settings() -> (u64, u64) {
    let setting =
        |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    (setting("GDSYNC_LIVES_SECONDS", 3), setting("GDSYNC_LIVES_SEED", 1))
}
