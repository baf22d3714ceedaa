//! The log on stderr, switched on by the same environment variables as gdrcopy's.

use std::io;
use std::sync::Once;
use tracing::level_filters::LevelFilter;

/// Returns the lowest level that is logged, in gdrcopy's numbers: 1 debug, 2 information, 3 warnings, 4 errors.
fn level(text: Option<&str>) -> LevelFilter {
    // As C's atoi: the leading digits, or 0 without any.
    let number = text.map_or(4, |text| {
        let text = text.trim_start();
        let sign = text.starts_with(['-', '+']) as usize;
        let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
        if text.starts_with('-') { 0 } else { text[sign..sign + digits].parse().unwrap_or(0) }
    });
    match number {
        0 | 1 => LevelFilter::DEBUG,
        2 => LevelFilter::INFO,
        3 => LevelFilter::WARN,
        4 => LevelFilter::ERROR,
        _ => LevelFilter::OFF,
    }
}

/// Starts the log if the environment asks for one, unless the program has one, such as a Rust program that links the static library.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if std::env::var_os("GDRCOPY_ENABLE_LOGGING").is_none() {
            return;
        }
        let text = std::env::var_os("GDRCOPY_LOG_LEVEL").map(|text| text.to_string_lossy().into_owned());
        let log = tracing_subscriber::fmt()
            .with_max_level(level(text.as_deref()))
            .with_writer(io::stderr)
            // The subscriber would report a failed write by `eprintln!`, which panics.
            .log_internal_errors(false)
            .with_ansi(false)
            .without_time();
        // Fails if the program has set another log.
        drop(log.try_init());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_gdrcopys() {
        let of = |text| level(Some(text));
        assert_eq!(
            (level(None), of("4"), of(" 4x")),
            (LevelFilter::ERROR, LevelFilter::ERROR, LevelFilter::ERROR)
        );
        assert_eq!((of("3"), of("+2"), of("1")), (LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG));
        assert_eq!(
            (of("0"), of("-7"), of(""), of("all")),
            (LevelFilter::DEBUG, LevelFilter::DEBUG, LevelFilter::DEBUG, LevelFilter::DEBUG)
        );
        assert_eq!((of("5"), of("77")), (LevelFilter::OFF, LevelFilter::OFF));
    }
}
