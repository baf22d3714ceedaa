//! The library's errors as the exceptions of `gdsync._errors`.

use crate::words;
use gdsync::cuda::{CudaError, DriverError};
use gdsync::memop::{StreamError, WordError};
use gdsync::memory::OutOfBounds;
use gdsync::qp::WaitError;
use gdsync::queue::{PollError, QueueFull, RequestError, StateError};
use gdsync::stream::PostFailure;
use gdsync::verbs::{OpenError, ParseError, QueuePairError};
use gdsync::{Error, QueueError};
use gdsync_notify::NotifyError;
use gdsync_notify::bootstrap::BootstrapError;
use gdsync_notify::collective::CollectiveError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The exception that a failed call raises.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An exception of gdsync with its text.
    Of(ExceptionClass, String),
    /// [`ExceptionClass::PeerDead`] with the rank and the cause.
    PeerDead { text: String, rank: u32, cause: String },
    /// An exception of Python, such as one raised by a callback.
    Python(PyErr),
}

/// The exception classes of `gdsync._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceptionClass {
    Error,
    InvalidArgument,
    Unsupported,
    WouldBlock,
    TimedOut,
    PeerDead,
    ConnectionFailed,
    DeviceError,
    StreamFailed,
}

const CLASS_COUNT: usize = ExceptionClass::StreamFailed as usize + 1;

impl ExceptionClass {
    fn name(self) -> &'static str {
        match self {
            ExceptionClass::Error => "Error",
            ExceptionClass::InvalidArgument => "InvalidArgument",
            ExceptionClass::Unsupported => "Unsupported",
            ExceptionClass::WouldBlock => "WouldBlock",
            ExceptionClass::TimedOut => "TimedOut",
            ExceptionClass::PeerDead => "PeerDead",
            ExceptionClass::ConnectionFailed => "ConnectionFailed",
            ExceptionClass::DeviceError => "DeviceError",
            ExceptionClass::StreamFailed => "StreamFailed",
        }
    }

    fn class(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; CLASS_COUNT] = [const { PyOnceLock::new() }; CLASS_COUNT];
        CLASSES[self as usize].import(py, "gdsync._errors", self.name()).cloned()
    }
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Failure::Of(ExceptionClass::InvalidArgument, text.into())
    }

    pub(crate) fn timed_out(what: &str, seconds: f64, cause: Option<String>) -> Self {
        let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
        let text = format!(
            "{what} took longer than {seconds} s{cause}: give a longer timeout, or None to wait without a limit"
        );
        Failure::Of(ExceptionClass::TimedOut, text)
    }

    /// Adds a hint to the text.
    pub(crate) fn with_hint(self, hint: &str) -> Self {
        match self {
            Failure::Of(class, text) => Failure::Of(class, format!("{text}; {hint}")),
            other => other,
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| match failure {
            Failure::Of(class, text) => match class.class(py) {
                Ok(class) => PyErr::from_type(class, words::of_python(text)),
                Err(error) => error,
            },
            Failure::PeerDead { text, rank, cause } => match ExceptionClass::PeerDead.class(py) {
                Ok(class) => PyErr::from_type(class, (words::of_python(text), rank, cause)),
                Err(error) => error,
            },
            Failure::Python(error) => error,
        })
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

/// Converts errors to the class that each names, with the library's text.
macro_rules! classes {
    ($($error:ty, $this:ident => $class:expr;)*) => {$(
        impl From<$error> for Failure {
            fn from($this: $error) -> Self {
                Failure::Of($class, $this.to_string())
            }
        }
    )*};
}

classes! {
    OutOfBounds, _this => ExceptionClass::InvalidArgument;
    WordError, _this => ExceptionClass::InvalidArgument;
    ParseError, _this => ExceptionClass::InvalidArgument;
    CudaError, this => class_of_cuda(&this);
    PollError, _this => ExceptionClass::DeviceError;
    StateError, this => class_of_state(&this);
    QueueError, this => class_of_queue(&this);
    Error, this => class_of_verbs(&this);
    BootstrapError, this => class_of_bootstrap(&this);
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Stopped { rank: Some(rank), ref reason } => {
                Failure::PeerDead { text: error.to_string(), rank, cause: reason.clone() }
            }
            error => Failure::Of(class_of_stream(&error), error.to_string()),
        }
    }
}

impl From<PostFailure> for Failure {
    fn from(failure: PostFailure) -> Self {
        match failure {
            PostFailure::Stream(error) => error.into(),
            failure => Failure::Of(class_of_post(&failure), failure.to_string()),
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::State(error) => error.into(),
            WaitError::Poll(error) => error.into(),
            WaitError::Verbs(error) => error.into(),
            other => Failure::Of(ExceptionClass::Error, other.to_string()),
        }
    }
}

impl From<NotifyError> for Failure {
    fn from(error: NotifyError) -> Self {
        let class = match &error {
            NotifyError::PeerDead { rank, cause } => {
                return Failure::PeerDead { text: error.to_string(), rank: *rank, cause: cause.to_string() };
            }
            NotifyError::TimedOut { .. } => ExceptionClass::TimedOut,
            NotifyError::Rank { .. }
            | NotifyError::Queue { .. }
            | NotifyError::OutOfSegment { .. }
            | NotifyError::Notification { .. }
            | NotifyError::ZeroValue { .. }
            | NotifyError::NothingToRegister
            | NotifyError::OtherGpu { .. }
            | NotifyError::Mismatch { .. } => ExceptionClass::InvalidArgument,
            NotifyError::Expelled { .. } | NotifyError::Ended | NotifyError::Failed { .. } => {
                ExceptionClass::ConnectionFailed
            }
            NotifyError::Consistency { .. } | NotifyError::NoReads => ExceptionClass::Unsupported,
            NotifyError::Post { source, .. } | NotifyError::LocalQueue(source) => class_of_queue(source),
            NotifyError::Device(source) => class_of_verbs(source),
            NotifyError::Cuda(source) => class_of_cuda(source),
            NotifyError::Unreachable(source) => class_of_stream(source),
            NotifyError::Bootstrap(source) => class_of_bootstrap(source),
            _ => ExceptionClass::Error,
        };
        Failure::Of(class, error.to_string())
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        let class = match error {
            CollectiveError::Notify(error) => return error.into(),
            CollectiveError::OtherTeam
            | CollectiveError::Bytes { .. }
            | CollectiveError::Notifications { .. }
            | CollectiveError::TooLong { .. }
            | CollectiveError::Element { .. }
            | CollectiveError::Unaligned { .. }
            | CollectiveError::Root { .. } => ExceptionClass::InvalidArgument,
            CollectiveError::NoKernel | CollectiveError::RawStream | CollectiveError::OtherGpu { .. } => {
                ExceptionClass::Unsupported
            }
            _ => ExceptionClass::Error,
        };
        Failure::Of(class, error.to_string())
    }
}

fn class_of_cuda(error: &CudaError) -> ExceptionClass {
    match error {
        CudaError::OutOfBounds { .. } => ExceptionClass::InvalidArgument,
        CudaError::Driver(DriverError::NoDriver) | CudaError::Capturing | CudaError::OtherThread => {
            ExceptionClass::Unsupported
        }
        _ => ExceptionClass::DeviceError,
    }
}

fn class_of_stream(error: &StreamError) -> ExceptionClass {
    match error {
        StreamError::Failed { .. } => ExceptionClass::StreamFailed,
        StreamError::Stopped { .. } => ExceptionClass::ConnectionFailed,
        StreamError::Unsupported { .. } => ExceptionClass::Unsupported,
        StreamError::OtherGpu { .. } | StreamError::Unregistered { .. } => ExceptionClass::InvalidArgument,
        StreamError::Cuda(error) => class_of_cuda(error),
        _ => ExceptionClass::DeviceError,
    }
}

fn class_of_state(error: &StateError) -> ExceptionClass {
    match error {
        StateError::NotConnected { .. } | StateError::Failed { .. } => ExceptionClass::ConnectionFailed,
        _ => ExceptionClass::Error,
    }
}

fn class_of_queue(error: &QueueError) -> ExceptionClass {
    match error {
        QueueError::Full(QueueFull::NoMemory { .. }) => ExceptionClass::DeviceError,
        QueueError::Full(_) => ExceptionClass::WouldBlock,
        QueueError::Request(RequestError::NotOnTransport { .. } | RequestError::NotOnDevice { .. }) => {
            ExceptionClass::Unsupported
        }
        QueueError::Request(_) | QueueError::Bounds(_) | QueueError::Word(_) => {
            ExceptionClass::InvalidArgument
        }
        QueueError::State(error) => class_of_state(error),
        _ => ExceptionClass::Error,
    }
}

fn class_of_verbs(error: &Error) -> ExceptionClass {
    match error {
        Error::OutOfRange(_) | Error::Parse(_) | Error::Word(_) => ExceptionClass::InvalidArgument,
        Error::Open(OpenError::NoDevice { .. } | OpenError::Load(_) | OpenError::NoKernelSupport) => {
            ExceptionClass::Unsupported
        }
        Error::Open(OpenError::Setting { .. }) => ExceptionClass::InvalidArgument,
        Error::QueuePair(QueuePairError::NoTransport { .. } | QueuePairError::NoCardWaits { .. }) => {
            ExceptionClass::Unsupported
        }
        Error::Cuda(error) => class_of_cuda(error),
        Error::QueuePair(_) => ExceptionClass::Error,
        _ => ExceptionClass::DeviceError,
    }
}

fn class_of_post(error: &PostFailure) -> ExceptionClass {
    match error {
        PostFailure::Queue(error) => class_of_queue(error),
        PostFailure::Stream(error) => class_of_stream(error),
        PostFailure::WouldBlock { .. } => ExceptionClass::WouldBlock,
        _ => ExceptionClass::Error,
    }
}

fn class_of_bootstrap(error: &BootstrapError) -> ExceptionClass {
    match error {
        BootstrapError::NoLauncher
        | BootstrapError::NoSize { .. }
        | BootstrapError::Variable { .. }
        | BootstrapError::Rank { .. }
        | BootstrapError::NoJobName
        | BootstrapError::SeveralHosts { .. }
        | BootstrapError::OtherSize { .. }
        | BootstrapError::TooLong { .. }
        | BootstrapError::Parts { .. } => ExceptionClass::InvalidArgument,
        BootstrapError::Late { .. } => ExceptionClass::TimedOut,
        _ => ExceptionClass::ConnectionFailed,
    }
}
