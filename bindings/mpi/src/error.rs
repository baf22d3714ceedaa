//! Translates errors and panics to classes of MPI errors.

use gdsync::memop::StreamError;
use gdsync::memory::OutOfBounds;
use gdsync::persistent::{ListError, PersistentError};
use gdsync::queue::StateError;
use gdsync::stream::PostFailure;
use gdsync::{Error, QueueError};
use gdsync_sys::contain::contain;
use std::cell::RefCell;
use std::fmt::Display;

/// The class of an error: `enum gdsync_mpi_class` of `c/engine.h`. The C part maps it to a class of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Class {
    Argument = 1,
    Buffer = 2,
    /// The request is in a state that does not allow the call.
    Request = 3,
    /// The receive is shorter than the message.
    Truncate = 4,
    /// The library does not support the call.
    Unsupported = 5,
    /// Memory or another resource is missing.
    Memory = 6,
    /// The peer does not respond or has failed.
    Peer = 7,
    Other = 8,
}

impl Class {
    const ALL: [Class; 8] = [
        Class::Argument,
        Class::Buffer,
        Class::Request,
        Class::Truncate,
        Class::Unsupported,
        Class::Memory,
        Class::Peer,
        Class::Other,
    ];

    /// Returns the class with a number that a peer has sent; [`Class::Other`] for an unknown number.
    pub(crate) fn of(number: i32) -> Class {
        Self::ALL.into_iter().find(|class| *class as i32 == number).unwrap_or(Class::Other)
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[error("{text}")]
pub(crate) struct Failure {
    pub(crate) class: Class,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(class: Class, text: impl Display) -> Self {
        Failure { class, text: text.to_string() }
    }

    /// Returns the failure with its subject in front of the text.
    pub(crate) fn about(self, what: impl Display) -> Self {
        Failure { text: format!("{what}: {}", self.text), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let class = match error {
            Error::Memory { .. } => Class::Memory,
            _ => Class::Other,
        };
        Failure::new(class, error)
    }
}

impl From<OutOfBounds> for Failure {
    fn from(error: OutOfBounds) -> Self {
        Failure::new(Class::Buffer, error)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Failure::new(Class::Other, error)
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let is_failed = matches!(error, QueueError::State(StateError::Failed { .. }));
        Failure::new(if is_failed { Class::Peer } else { Class::Other }, error)
    }
}

impl From<PersistentError> for Failure {
    fn from(error: PersistentError) -> Self {
        match error {
            PersistentError::Queue(error) | PersistentError::Post(PostFailure::Queue(error)) => error.into(),
            PersistentError::Active | PersistentError::Inactive => Failure::new(Class::Request, error),
            error => Failure::new(Class::Other, error),
        }
    }
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Self {
        error.source.into()
    }
}

thread_local! {
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the text of this thread's last failure.
pub(crate) fn text() -> String {
    TEXT.try_with(|text| text.borrow().clone()).unwrap_or_default()
}

/// Returns the text, cut to that many bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Runs the body of a C function. Returns 0, or the class of its error, whose text becomes this thread's last one.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let result = contain(body).unwrap_or_else(|message| {
        let text = format!("a panic inside gdsync, which is a defect: please report it ({message})");
        Err(Failure::new(Class::Other, text))
    });
    let Err(failure) = result else { return 0 };
    tracing::debug!(class = ?failure.class, "{failure}");
    // The thread-local is gone while the thread ends.
    let _gone = TEXT.try_with(|text| *text.borrow_mut() = failure.text);
    failure.class as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(status(|| panic!("out of cheese")), Class::Other as i32);
        assert!(text().contains("out of cheese"), "{}", text());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("µs", 1), "");
        assert_eq!(cut("µs", 2), "µ");
        assert_eq!(cut("µs", 9), "µs");
    }

    #[test]
    fn unknown_numbers_of_a_peer_are_other_errors() {
        assert_eq!(Class::of(Class::Truncate as i32), Class::Truncate);
        assert_eq!(Class::of(-1), Class::Other);
    }
}
