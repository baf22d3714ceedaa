//! The library's errors as the exceptions of `gdsync._errors`.

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

/// What a failed call raises.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An exception of gdsync's, with its text.
    Of(Kind, String),
    /// [`Kind::PeerDead`], with the rank and how this rank knows.
    PeerDead { text: String, rank: u32, cause: String },
    /// An exception of Python's, such as one that a callback raised.
    Python(PyErr),
}

/// The exceptions, by their names in `gdsync._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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

const KINDS: usize = Kind::StreamFailed as usize + 1;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Error => "Error",
            Kind::InvalidArgument => "InvalidArgument",
            Kind::Unsupported => "Unsupported",
            Kind::WouldBlock => "WouldBlock",
            Kind::TimedOut => "TimedOut",
            Kind::PeerDead => "PeerDead",
            Kind::ConnectionFailed => "ConnectionFailed",
            Kind::DeviceError => "DeviceError",
            Kind::StreamFailed => "StreamFailed",
        }
    }

    fn class(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; KINDS] = [const { PyOnceLock::new() }; KINDS];
        CLASSES[self as usize].import(py, "gdsync._errors", self.name()).cloned()
    }
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Failure::Of(Kind::InvalidArgument, text.into())
    }

    pub(crate) fn timed_out(what: &str, seconds: f64) -> Self {
        let text = format!(
            "{what} took longer than {seconds} s: give a longer timeout, or None to wait without a limit"
        );
        Failure::Of(Kind::TimedOut, text)
    }

    /// The same with more of an explanation.
    pub(crate) fn with_hint(self, hint: &str) -> Self {
        match self {
            Failure::Of(kind, text) => Failure::Of(kind, format!("{text}; {hint}")),
            other => other,
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| match failure {
            Failure::Of(kind, text) => match kind.class(py) {
                Ok(class) => PyErr::from_type(class, text),
                Err(error) => error,
            },
            Failure::PeerDead { text, rank, cause } => match Kind::PeerDead.class(py) {
                Ok(class) => PyErr::from_type(class, (text, rank, cause)),
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

/// Errors whose kind says the class, and whose text is the library's.
macro_rules! kinds {
    ($($error:ty, $this:ident => $kind:expr;)*) => {$(
        impl From<$error> for Failure {
            fn from($this: $error) -> Self {
                Failure::Of($kind, $this.to_string())
            }
        }
    )*};
}

kinds! {
    OutOfBounds, _this => Kind::InvalidArgument;
    WordError, _this => Kind::InvalidArgument;
    ParseError, _this => Kind::InvalidArgument;
    CudaError, this => of_cuda(&this);
    StreamError, this => of_stream(&this);
    PollError, _this => Kind::DeviceError;
    StateError, this => of_state(&this);
    QueueError, this => of_queue(&this);
    Error, this => of_verbs(&this);
    PostFailure, this => of_post(&this);
    BootstrapError, this => of_bootstrap(&this);
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::State(error) => error.into(),
            WaitError::Poll(error) => error.into(),
            WaitError::Verbs(error) => error.into(),
            other => Failure::Of(Kind::Error, other.to_string()),
        }
    }
}

impl From<NotifyError> for Failure {
    fn from(error: NotifyError) -> Self {
        let kind = match &error {
            NotifyError::PeerDead { rank, cause } => {
                return Failure::PeerDead { text: error.to_string(), rank: *rank, cause: cause.to_string() };
            }
            NotifyError::TimedOut { .. } => Kind::TimedOut,
            NotifyError::Rank { .. }
            | NotifyError::Queue { .. }
            | NotifyError::OutOfSegment { .. }
            | NotifyError::Notification { .. }
            | NotifyError::ZeroValue { .. }
            | NotifyError::NothingToRegister
            | NotifyError::OtherGpu { .. }
            | NotifyError::Mismatch { .. } => Kind::InvalidArgument,
            NotifyError::Expelled { .. } | NotifyError::Failed { .. } => Kind::ConnectionFailed,
            NotifyError::Consistency { .. } | NotifyError::NoReads => Kind::Unsupported,
            NotifyError::Post { source, .. } | NotifyError::Local(source) => of_queue(source),
            NotifyError::Device(source) => of_verbs(source),
            NotifyError::Cuda(source) => of_cuda(source),
            NotifyError::Unreachable(source) => of_stream(source),
            NotifyError::Bootstrap(source) => of_bootstrap(source),
            _ => Kind::Error,
        };
        Failure::Of(kind, error.to_string())
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        let kind = match error {
            CollectiveError::Notify(error) => return error.into(),
            CollectiveError::OtherTeam
            | CollectiveError::Bytes { .. }
            | CollectiveError::Notifications { .. }
            | CollectiveError::TooLong { .. }
            | CollectiveError::Element { .. }
            | CollectiveError::Unaligned { .. }
            | CollectiveError::Root { .. } => Kind::InvalidArgument,
            CollectiveError::NoKernel | CollectiveError::RawStream | CollectiveError::OtherGpu { .. } => {
                Kind::Unsupported
            }
            _ => Kind::Error,
        };
        Failure::Of(kind, error.to_string())
    }
}

fn of_cuda(error: &CudaError) -> Kind {
    match error {
        CudaError::OutOfBounds { .. } => Kind::InvalidArgument,
        CudaError::Driver(DriverError::NoDriver) | CudaError::Capturing | CudaError::OtherThread => {
            Kind::Unsupported
        }
        _ => Kind::DeviceError,
    }
}

fn of_stream(error: &StreamError) -> Kind {
    match error {
        StreamError::Failed { .. } => Kind::StreamFailed,
        StreamError::Unsupported { .. } => Kind::Unsupported,
        StreamError::OtherGpu { .. } | StreamError::Unregistered { .. } => Kind::InvalidArgument,
        StreamError::Cuda(error) => of_cuda(error),
        _ => Kind::DeviceError,
    }
}

fn of_state(error: &StateError) -> Kind {
    match error {
        StateError::NotConnected { .. } | StateError::Failed { .. } => Kind::ConnectionFailed,
        _ => Kind::Error,
    }
}

fn of_queue(error: &QueueError) -> Kind {
    match error {
        QueueError::Full(QueueFull::NoMemory { .. }) => Kind::DeviceError,
        QueueError::Full(_) => Kind::WouldBlock,
        QueueError::Request(RequestError::NotOnTransport { .. } | RequestError::NotOnDevice { .. }) => {
            Kind::Unsupported
        }
        QueueError::Request(_) | QueueError::Bounds(_) | QueueError::Word(_) => Kind::InvalidArgument,
        QueueError::State(error) => of_state(error),
        _ => Kind::Error,
    }
}

fn of_verbs(error: &Error) -> Kind {
    match error {
        Error::OutOfRange(_) | Error::Parse(_) | Error::Word(_) => Kind::InvalidArgument,
        Error::Open(OpenError::NoDevice { .. } | OpenError::Load(_) | OpenError::NoKernelSupport) => {
            Kind::Unsupported
        }
        Error::Open(OpenError::Setting { .. }) => Kind::InvalidArgument,
        Error::QueuePair(QueuePairError::NoTransport { .. } | QueuePairError::NoCardWaits { .. }) => {
            Kind::Unsupported
        }
        Error::Cuda(error) => of_cuda(error),
        Error::QueuePair(_) => Kind::Error,
        _ => Kind::DeviceError,
    }
}

fn of_post(error: &PostFailure) -> Kind {
    match error {
        PostFailure::Queue(error) => of_queue(error),
        PostFailure::Stream(error) => of_stream(error),
        PostFailure::WouldBlock { .. } => Kind::WouldBlock,
        _ => Kind::Error,
    }
}

fn of_bootstrap(error: &BootstrapError) -> Kind {
    match error {
        BootstrapError::NoLauncher
        | BootstrapError::NoSize { .. }
        | BootstrapError::Variable { .. }
        | BootstrapError::Rank { .. }
        | BootstrapError::NoJobName
        | BootstrapError::SeveralHosts { .. }
        | BootstrapError::OtherSize { .. }
        | BootstrapError::TooLong { .. }
        | BootstrapError::Parts { .. } => Kind::InvalidArgument,
        BootstrapError::Late { .. } => Kind::TimedOut,
        _ => Kind::ConnectionFailed,
    }
}
