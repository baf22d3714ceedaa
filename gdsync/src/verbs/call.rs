//! The calling conventions of libibverbs, turned into `Result`s.

use crate::verbs::error::Error;
use libc::c_int;
use std::io;
use std::ptr::NonNull;

/// A call that returns a pointer, or null and `errno`.
pub(crate) fn pointer<T>(
    call: &'static str,
    raw: *mut T,
    detail: impl FnOnce() -> String,
) -> Result<NonNull<T>, Error> {
    NonNull::new(raw).ok_or_else(|| Error::Verbs {
        call,
        detail: detail(),
        source: io::Error::last_os_error(),
    })
}

/// A call that returns 0, a positive errno, or -1 and `errno`.
pub(crate) fn status(call: &'static str, rc: c_int, detail: impl FnOnce() -> String) -> Result<(), Error> {
    let source = match rc {
        0 => return Ok(()),
        rc if rc > 0 => io::Error::from_raw_os_error(rc),
        _ => io::Error::last_os_error(),
    };
    Err(Error::Verbs { call, detail: detail(), source })
}

/// A call made by a destructor, which cannot return an error: it is logged.
pub(crate) fn on_drop(call: &'static str, rc: c_int) {
    if let Err(error) = status(call, rc, String::new) {
        tracing::error!(%error, "an object could not be released and leaks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_error_conventions_are_understood() {
        assert!(status("f", 0, String::new).is_ok());
        let text = status("ibv_f", libc::EINVAL, || "port 9".to_owned()).unwrap_err().to_string();
        assert!(text.starts_with("ibv_f failed (port 9): Invalid argument"), "{text}");
        assert!(pointer::<u8>("g", std::ptr::null_mut(), String::new).is_err());
        on_drop("h", libc::EBUSY);
    }
}
