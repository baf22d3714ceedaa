//! Streams that tell when they have passed a point.

use gdsync::cudarc::driver::CudaEvent;
use gdsync::cudarc::driver::sys::CUevent_flags;
use gdsync::memop::MemOpStream;
use gdsync::stream::Event;
use gdsync::{CudaStream, SoftStream, Stream};
use gdsync_cli::failure::Failure;

pub(super) trait Clocked: MemOpStream + Sized {
    /// A point of a stream, which has a time once the stream has passed it.
    type Mark;

    /// A mark to be recorded again and again: made while the stream is idle, as a driver may make it
    /// only then.
    fn mark(stream: &Stream<Self>) -> Result<Self::Mark, Failure>;

    fn record(stream: &Stream<Self>, mark: &mut Self::Mark) -> Result<(), Failure>;

    /// The time between two points that the stream has passed, in µs.
    fn between(start: &Self::Mark, end: &Self::Mark) -> Result<f64, Failure>;
}

/// The clock of the CPU, which performs the stream.
impl Clocked for SoftStream {
    type Mark = Option<Event>;

    fn mark(_: &Stream<Self>) -> Result<Self::Mark, Failure> {
        Ok(None)
    }

    fn record(stream: &Stream<Self>, mark: &mut Self::Mark) -> Result<(), Failure> {
        *mark = Some(stream.record()?);
        Ok(())
    }

    fn between(start: &Self::Mark, end: &Self::Mark) -> Result<f64, Failure> {
        let passed = |mark: &Self::Mark| {
            mark.as_ref().and_then(Event::completed_at).ok_or("the stream has not passed a mark")
        };
        Ok(passed(end)?.duration_since(passed(start)?).as_secs_f64() * 1e6)
    }
}

/// The clock of the GPU, which writes the times.
impl Clocked for CudaStream {
    type Mark = CudaEvent;

    fn mark(stream: &Stream<Self>) -> Result<CudaEvent, Failure> {
        let queue = stream.cudarc().ok_or("a stream of another library")?;
        Ok(queue.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    fn record(stream: &Stream<Self>, mark: &mut CudaEvent) -> Result<(), Failure> {
        let queue = stream.cudarc().ok_or("a stream of another library")?;
        Ok(mark.record(queue)?)
    }

    fn between(start: &CudaEvent, end: &CudaEvent) -> Result<f64, Failure> {
        Ok(f64::from(start.elapsed_ms(end)?) * 1e3)
    }
}
