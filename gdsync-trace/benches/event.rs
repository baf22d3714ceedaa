//! Cost of an event, with and without a trace. `cargo bench -p gdsync-trace`.

use gdsync_trace::{EventKind, TRACE_VARIABLE, enabled, event, span};
use std::error::Error;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

/// Events per measurement: the content of a thread's buffer, so that one flush is included.
const EVENTS: u64 = 4096;
/// Number of measurements. All events together fit a part.
const TIMES: usize = 200;

/// Returns the median nanoseconds of a call, including its consequences.
fn time(call: impl Fn(u64)) -> f64 {
    let mut times = [0.0; TIMES];
    for time in &mut times {
        let start = Instant::now();
        (0..EVENTS).for_each(&call);
        *time = start.elapsed().as_nanos() as f64 / EVENTS as f64;
    }
    times.sort_by(f64::total_cmp);
    times[TIMES / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let moment = time(|number| event(EventKind::Polled, || [0x41, number, 0]));
    let lasting = time(|number| drop(span(EventKind::Polled, || [0x41, number, 0])));
    let name = if enabled() { "on" } else { "off" };
    writeln!(std::io::stdout(), "{name}: {moment:.2} ns an event, {lasting:.2} ns one that lasts")?;
    if enabled() {
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("gdsync-trace-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let on = Command::new(std::env::current_exe()?).env(TRACE_VARIABLE, &folder).status();
    std::fs::remove_dir_all(&folder)?;
    if on?.success() { Ok(()) } else { Err("the run with a trace has failed".into()) }
}
