//! On the system's libraries (`GDSYNC_TEST_PROVIDER=system`, as in `scripts/test-system`): queues in memory of
//! every source, and refusals.

use super::domain::Sources;
use super::memory::{Keep, MemorySource, QueueMemory, UmemSource};
use super::{Cq, Domain, Qp};
use crate::cuda::QueuePlacement;
use crate::memory::spans::{Span, SpanKind};
use crate::qp::life::create;
use crate::qp::make::{Maker, QueueDomain, Role};
use crate::qp::testing::{LONG, poll};
use crate::verbs::pd::ProtectionDomainInner;
use crate::verbs::{DevxError, DevxStatus};
use crate::verbs::{LinkLayer, QueueApi, provider};
use crate::*;
use parking_lot::Mutex;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the system's first device; none, with a message, if the software card of this process is under test.
fn device(test: &str) -> Option<Device> {
    if std::env::var_os("GDSYNC_TEST_PROVIDER").is_some_and(|name| name == "system") {
        return Some(Device::open(provider::system().unwrap(), None).unwrap());
    }
    let line = format!("SKIPPED {test}: it wants libmlx5 (scripts/test-system)\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

/// Memory of files, in place of a dma-buf that the CPU can map. Each queue begins behind the first pages of its file.
#[derive(Debug)]
struct MemoryFiles {
    /// Name of the files in procfs, by which each test finds its own.
    name: &'static CStr,
    made: Mutex<Vec<File>>,
}

impl MemoryFiles {
    fn new(name: &'static CStr) -> MemoryFiles {
        MemoryFiles { name, made: Mutex::default() }
    }
}

const LEAD: usize = 3 * 4096;

impl MemorySource for MemoryFiles {
    fn allocate(&self, len: usize) -> Result<QueueMemory, Error> {
        let mapped = len.next_multiple_of(4096);
        // SAFETY: a C string; a new descriptor, which is ours.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(self.name.as_ptr(), libc::MFD_CLOEXEC)) };
        let file = File::from(file);
        file.set_len((LEAD + mapped) as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                LEAD as libc::off_t,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let address = base as usize;
        // SAFETY: our mapping; nothing uses it when its span is released.
        let unmap = move || assert_eq!(unsafe { libc::munmap(address as *mut libc::c_void, mapped) }, 0);
        let keep: Keep =
            Box::new(Span::announce(address as u64, mapped as u64, SpanKind::Whole, Box::new(unmap)));
        let source = UmemSource::DmaBuf { fd: file.try_clone().unwrap().into(), offset: LEAD as u64 };
        self.made.lock().push(file);
        // SAFETY: zeroed pages, mapped until the span is released; the file's part is the same memory.
        Ok(unsafe { QueueMemory::new(NonNull::new(base.cast()).unwrap(), len, source, keep) })
    }
}

/// Supplies memory a number of times, and then memory that does not exist, of either kind.
#[derive(Debug)]
struct RunsOut {
    left: AtomicUsize,
    then: Then,
    files: MemoryFiles,
    /// The other end of the pipe that was passed as a buffer.
    writer: Mutex<Option<PipeWriter>>,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    NoMemory,
    /// Mapped for the CPU, not for the device.
    NotThere,
    /// A descriptor that is not of memory.
    NoBuffer,
}

impl MemorySource for RunsOut {
    fn allocate(&self, len: usize) -> Result<QueueMemory, Error> {
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return self.files.allocate(len);
        }
        let source = match self.then {
            Then::NoMemory => {
                return Err(Error::Memory { len, source: io::Error::from_raw_os_error(libc::ENOMEM) });
            }
            Then::NotThere => UmemSource::Host,
            Then::NoBuffer => {
                let (read, write) = io::pipe().unwrap();
                *self.writer.lock() = Some(write);
                UmemSource::DmaBuf { fd: read.into(), offset: 0 }
            }
        };
        // SAFETY: not true on purpose: the device refuses it, so nothing ever accesses it.
        Ok(unsafe { QueueMemory::new(NonNull::new(4096 as *mut u8).unwrap(), len, source, Box::new(())) })
    }
}

fn domain(pd: &Arc<ProtectionDomainInner>, source: Arc<dyn MemorySource>) -> Result<Arc<QueueDomain>, Error> {
    let sources = Sources { work: source.clone(), completions: source.clone(), records: source };
    let maker = Maker::Devx(Domain::in_memory_of(pd, sources)?);
    Ok(Arc::new(QueueDomain { maker, placement: QueuePlacement::HOST, pd: pd.clone() }))
}

/// Counts this process's descriptors of memory files of that name. Other tests open and close other files meanwhile.
fn descriptors_of(name: &CStr) -> usize {
    let name = format!("/memfd:{}", name.to_str().unwrap());
    // A descriptor may be closed after the listing.
    let targets =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.to_str().is_some_and(|target| target.starts_with(&name))).count()
}

#[test]
fn devx_queues_in_memory_files_carry_messages_of_streams_and_of_the_cpu() {
    let Some(device) = device("devx_queues_in_memory_files_carry_messages_of_streams_and_of_the_cpu") else {
        return;
    };
    let pd = ProtectionDomain::new(&device).unwrap();
    let source = Arc::new(MemoryFiles::new(c"carries"));
    let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
    let make = || {
        create::in_domain(domain(&pd.inner, source.clone()).unwrap(), config, Role::Plain)
            .and_then(QueuePair::started)
            .unwrap()
    };
    let (left, right) = (make(), make());
    // Send completions, receive completions and rings of each side.
    let made = std::mem::take(&mut *source.made.lock());
    assert_eq!(made.len(), 6);
    assert!(descriptors_of(c"carries") >= 6, "the count that the other test relies on sees them");
    let op_own = |file: &File| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, LEAD as u64 + 63).unwrap();
        byte[0]
    };
    assert!([0, 1, 3, 4].iter().all(|queue| op_own(&made[*queue]) == 0xf1), "invalid, with owner bit 1");
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 16, Access::all()).unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let slices = [region.slice(..8).unwrap()];
    for round in 0..500u64 {
        region.write(0, &round.to_le_bytes());
        right.post_recv(&[region.slice(8..).unwrap()], round).unwrap();
        if round % 2 == 0 {
            let send = left.prepare(WorkRequest::send(&slices).wr_id(round)).unwrap();
            let wait = right.recv_cq().prepare_wait().unwrap();
            stream.post(Batch::new().send(send).wait(wait)).unwrap();
            assert!(stream.synchronize_timeout(LONG).unwrap(), "{stream:?}");
        } else {
            left.post_send(WorkRequest::send(&slices).wr_id(round)).unwrap();
        }
        assert_eq!((poll(&right.recv_cq()).wr_id, poll(&left.send_cq()).wr_id), (round, round));
        let mut arrived = [0; 8];
        region.read(8, &mut arrived);
        assert_eq!(u64::from_le_bytes(arrived), round);
    }
    assert_ne!(op_own(&made[0]), 0xf1, "the card has written into the file");
    let rings_of_the_right = &made[5];
    let end = rings_of_the_right.metadata().unwrap().len();
    let records: Vec<u64> = (LEAD as u64..end).step_by(64).collect();
    let is_record = |at: u64| {
        let mut record = [0; 4];
        rings_of_the_right.read_exact_at(&mut record, at).unwrap();
        u32::from_be_bytes(record) == 500
    };
    assert!(records.into_iter().any(is_record), "the record counts 500 receives");
}

#[test]
fn devx_queues_that_cannot_have_their_memory_leave_nothing_behind() {
    let Some(device) = device("devx_queues_that_cannot_have_their_memory_leave_nothing_behind") else {
        return;
    };
    let pd = ProtectionDomain::new(&device).unwrap();
    for then in [Then::NoMemory, Then::NotThere, Then::NoBuffer] {
        // The completion queues first, then the rings.
        for made in 0..3 {
            let files = MemoryFiles::new(c"runs-out");
            let left = AtomicUsize::new(made);
            let source = Arc::new(RunsOut { left, then, files, writer: Mutex::default() });
            let domain = domain(&pd.inner, source.clone()).unwrap();
            let error = create::in_domain(domain, QueuePairConfig::default(), Role::Plain).unwrap_err();
            source.files.made.lock().clear();
            assert_eq!(descriptors_of(c"runs-out"), 0, "{then:?} after {made}");
            if let Some(mut writer) = source.writer.lock().take() {
                // The reading end was closed.
                assert_eq!(writer.write(&[0]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            }
            let text = error.to_string();
            match (then, error) {
                (Then::NoMemory, Error::Memory { source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
                }
                (Then::NotThere, Error::Verbs { call: "mlx5dv_devx_umem_reg", .. })
                | (Then::NoBuffer, Error::Verbs { call: "mlx5dv_devx_umem_reg_ex", .. }) => {
                    assert!(text.contains("bytes"), "{text}");
                }
                (then, error) => panic!("{then:?}: {error}"),
            }
        }
    }
    // Other queues can still be made.
    QueuePair::new(&pd, QueuePairConfig::default().queues(QueueApi::Devx)).unwrap();
}

#[test]
fn devx_refusals_of_the_device_have_its_status_and_syndrome() {
    let Some(device) = device("devx_refusals_of_the_device_have_its_status_and_syndrome") else { return };
    let pd = ProtectionDomain::new(&device).unwrap();
    let domain = Domain::new(&pd.inner, QueuePlacement::HOST).unwrap();
    let (cq, _ring) = Cq::new(&domain, 16).unwrap();
    let config = QueuePairConfig::default();
    let refused = |numbers| match Qp::make(&domain, &config, numbers, Role::Plain).err().unwrap() {
        Error::Devx(DevxError::Refused { command: "CREATE_QP", status, syndrome, .. }) => (status, syndrome),
        other => panic!("{other}"),
    };
    for numbers in [(0xff_fffe, cq.number()), (cq.number(), 0xff_fffe)] {
        let (status, syndrome) = refused(numbers);
        assert_eq!(status, DevxStatus(0x05), "bad resource");
        assert_ne!(syndrome, 0);
    }
    // A queue pair that is not connected cannot be moved to RTS.
    let (qp, _parts) = Qp::make(&domain, &config, (cq.number(), cq.number()), Role::Plain).unwrap();
    let attr =
        gdsync_sys::verbs::ibv_qp_attr { qp_state: gdsync_sys::verbs::IBV_QPS_RTS, ..Default::default() };
    let error = qp.modify(&pd.inner, &config, LinkLayer::InfiniBand, &attr).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Devx(DevxError::Refused { command: "RTR2RTS_QP", status: DevxStatus(0x10), .. })
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("bad queue pair state") && text.contains("syndrome 0x"), "{text}");
}

#[test]
fn reads_in_flight_are_powers_of_two() {
    assert_eq!([0, 1, 2, 3, 4, 15, 16, 255].map(super::log_of), [0, 0, 1, 2, 2, 4, 4, 8]);
}

#[test]
fn devx_says_that_the_card_waits() {
    let Some(device) = device("devx_says_that_the_card_waits") else { return };
    let waits = device.card_waits().unwrap();
    assert!(waits.data && waits.time && waits.queues && waits.ignore_overrun);
    assert_eq!(waits.recordless, 256);
}
