//! Operations of MPI that streams and graphs trigger, and wait for.

use crate::error::{Class, Failure};
use crate::flag::Flag;
use crate::launches::{DONE, Launches};
use gdsync::memop::{Condition, Word32};
use gdsync_sys::pause::Pause;
use libc::{c_int, c_void};

/// What the C part does with MPI: `struct gdsync_mpi_calls` of `c/engine.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Starts an operation that a stream has triggered, or gives it up: then `is_given_up` is not 0.
    pub start: unsafe extern "C" fn(operation: *mut c_void, is_given_up: c_int),
    /// No graph triggers an operation any more.
    pub gone: unsafe extern "C" fn(operation: *mut c_void),
    /// Has MPI progress. Returns how much is outstanding.
    pub progress: unsafe extern "C" fn() -> c_int,
}

/// An operation of the C part.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The C part's name of it.
    pub(crate) operation: usize,
    /// How streams learn that it has completed.
    pub(crate) signal: Signal,
}

#[derive(Debug)]
pub(crate) enum Signal {
    /// Of one that is triggered once.
    Flag(Flag),
    /// Of one in a graph.
    Launches(Launches),
}

impl Signal {
    /// What a stream waits for.
    pub(crate) fn condition(&self) -> (&Word32, Condition, u32) {
        match self {
            Signal::Flag(flag) => (&flag.word, Condition::Geq, flag.value),
            Signal::Launches(launches) => (&launches.word, Condition::Eq, DONE),
        }
    }

    pub(crate) fn set(&self) {
        match self {
            Signal::Flag(flag) => flag.set(),
            Signal::Launches(launches) => launches.set_done(),
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        match self {
            Signal::Flag(flag) => flag.is_set(),
            Signal::Launches(launches) => launches.is_done(),
        }
    }
}

impl Operation {
    /// One that a stream triggers, or one in a graph.
    ///
    /// # Safety
    /// `operation` is what [`Calls::start`] takes, and stays valid until that was called with it; in a graph, until
    /// [`Calls::gone`] was.
    pub(crate) unsafe fn new(operation: *mut c_void, is_in_graph: bool) -> Result<Self, Failure> {
        let signal =
            if is_in_graph { Signal::Launches(Launches::new()?) } else { Signal::Flag(Flag::new()?) };
        Ok(Operation { operation: operation.expose_provenance(), signal })
    }

    /// # Errors
    /// [`Class::Request`] where it is in no graph.
    pub(crate) fn launches(&self) -> Result<&Launches, Failure> {
        let text = "the request was enqueued on a stream, and is triggered once: a graph, which is launched any number of times, does not wait for it. Wait for it on a stream";
        match &self.signal {
            Signal::Launches(launches) => Ok(launches),
            Signal::Flag(_) => Err(Failure::new(Class::Request, text)),
        }
    }

    /// Waits on the CPU until it has completed.
    pub(crate) fn wait(&self) {
        let mut pause = Pause::new();
        while !self.signal.is_set() {
            pause.pause();
        }
    }

    pub(crate) fn start(&self, calls: Calls, is_given_up: bool) {
        let operation = std::ptr::with_exposed_provenance_mut(self.operation);
        // SAFETY: the promise of `new`: one that a stream triggers is taken out of the list once, and one in a graph
        // before `gone` is called.
        unsafe { (calls.start)(operation, is_given_up.into()) }
    }

    pub(crate) fn gone(&self, calls: Calls) {
        let operation = std::ptr::with_exposed_provenance_mut(self.operation);
        // SAFETY: the promise of `new`; it is taken out of the list once.
        unsafe { (calls.gone)(operation) }
    }
}
