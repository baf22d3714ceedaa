//! Memory windows, by libibverbs: gdsync binds none. The requester is gdsync's, the owner of the window libmlx5's.

use super::super::probe::{Probe, REGION, SENT, UNTOUCHED, cannot_run, check, everything, within_patience};
use super::Step;
use crate::libmlx5::{Opened, Qp, Region, Window, WindowKind, next_key};
use gdsync::{Access, MemoryRegion, QueuePair, RemoteMemory, WorkRequest};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_sys::verbs::{
    IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2A,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B,
};
use std::ops::Range;

const ADVICE: &str = "please send the file: gdsync needs no memory windows, the programs of libibverbs that do have them otherwise than on the software card";
const REMEDY: &str = "a card whose driver reports MEM_WINDOW (`ibv_devinfo -v`), which needs the firmware's capability imaicl; gdsync needs none";

pub(super) const STEPS: &[Step] = &[
    Step::new("window.type-1", "a window that a verb binds, and what it leaves closed", ADVICE, type_1),
    Step::new(
        "window.type-2",
        "a window that a work request binds to a queue pair, and invalidates",
        ADVICE,
        type_2,
    ),
    Step::new("window.refused", "binds that break the rules", ADVICE, refused_binds),
];

/// The part of a region that windows open.
const OPEN: Range<usize> = 64..128;

/// Notes the device's capabilities, and allocates a window if it has any.
fn window<'a>(probe: &Probe, opened: &'a Opened, kind: WindowKind) -> Result<Window<'a>, Failure> {
    let (flags, most) = opened.window_capabilities()?;
    let names = [
        (IBV_DEVICE_MEM_WINDOW, "type 1"),
        (IBV_DEVICE_MEM_WINDOW_TYPE_2A, "type 2A"),
        (IBV_DEVICE_MEM_WINDOW_TYPE_2B, "type 2B"),
        (IBV_DEVICE_MEM_MGT_EXTENSIONS, "invalidation"),
    ];
    let has: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    probe.note("capabilities", has.join(", "))?;
    probe.note("max_windows", u64::try_from(most).unwrap_or(0))?;
    let wanted = match kind {
        WindowKind::Type1 => IBV_DEVICE_MEM_WINDOW,
        WindowKind::Type2 => IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    };
    // Asked in any case: a card that has windows and does not say so is no fault of the program's.
    let error = match Window::new(opened, kind)? {
        Ok(made) => {
            probe.note("allocated", "yes")?;
            return Ok(made);
        }
        Err(error) => error,
    };
    probe.note(
        "allocated",
        error.raw_os_error().map_or("no".to_owned(), |code| format!("no, errno {code}")),
    )?;
    if flags & wanted != 0 {
        return Err(format!("device_cap_flags {flags:#x} has them, and ibv_alloc_mw refuses: {error}").into());
    }
    Err(cannot_run(format!("the card has no memory windows of {kind:?} ({error})"), REMEDY))
}

fn open(probe: &Probe) -> Result<Opened, Failure> {
    Opened::new(Some(&hca::parse(&format!("{}:{}", probe.device.name(), probe.port))?))
}

/// A queue pair that writes, and the one that binds. A refused access fails both.
struct Bed<'a> {
    probe: &'a Probe,
    requester: QueuePair,
    source: MemoryRegion,
    owner: Qp<'a>,
}

impl<'a> Bed<'a> {
    fn new(probe: &'a Probe, opened: &'a Opened) -> Result<Self, Failure> {
        let pd = opened.domain()?;
        let requester = QueuePair::new(&pd, probe.config())?;
        let source = MemoryRegion::allocate(&pd, REGION, Access::empty())?;
        source.write(0, &[SENT; REGION]);
        let owner = Qp::new(opened, 0)?;
        owner.connect(&requester, everything())?;
        Ok(Bed { probe, requester, source, owner })
    }

    /// Waits for the owner's next completion, and notes it. Returns whether it is a success.
    fn completion(&self, what: &str) -> Result<bool, Failure> {
        let found = within_patience(&format!("a completion of {what}"), || self.owner.poll())?;
        let note = |field: &str, value: u64| self.probe.note(format!("{what}.{field}"), value);
        note("status", u64::from(found.status.unsigned_abs()))?;
        match found.status {
            0 => note("opcode", u64::from(found.opcode.unsigned_abs()))?,
            _ => note("vendor", u64::from(found.vendor_err))?,
        }
        Ok(found.status == 0)
    }

    fn succeeds(&self, what: &str) -> Result<(), Failure> {
        if self.completion(what)? { Ok(()) } else { Err(format!("{what} has failed").into()) }
    }

    fn fails(&self, what: &str) -> Result<(), Failure> {
        if self.completion(what)? {
            return Err(format!("{what} has succeeded, which it must not").into());
        }
        Ok(())
    }

    fn bind(
        &self,
        window: &Window<'_>,
        region: &Region<'_>,
        range: Range<usize>,
        access: Access,
    ) -> Result<(), Failure> {
        let before = window.key();
        self.owner.bind(window, region, range, access)?;
        self.succeeds("bind")?;
        self.probe.note("bind.next_key", window.key() == next_key(before))
    }

    fn write(&self, region: &Region<'_>, at: usize, rkey: u32) -> Result<(), Failure> {
        region.memory.write(0, &[UNTOUCHED; REGION]);
        let to = RemoteMemory { addr: region.memory.addr().get() + at as u64, len: 8, rkey };
        Ok(self.requester.post_send(WorkRequest::write(&[self.source.slice(..8)?], to).wr_id(1))?)
    }

    /// Writes 8 bytes, which the window must let pass.
    fn passes(&self, what: &str, region: &Region<'_>, at: usize, rkey: u32) -> Result<(), Failure> {
        self.write(region, at, rkey)?;
        self.probe.success(what, &self.requester.send_cq())?;
        check(&region.memory, at, 8)
    }

    /// Writes 8 bytes, which the window must keep out. Both queue pairs have failed then.
    fn keeps_out(self, what: &str, region: &Region<'_>, at: usize, rkey: u32) -> Result<(), Failure> {
        self.write(region, at, rkey)?;
        self.probe.failure(what, &self.requester.send_cq())?;
        check(&region.memory, 0, 0)
    }
}

/// A region whose own key opens nothing to remote sides.
fn region<'a>(opened: &'a Opened, right: Access) -> Result<Region<'a>, Failure> {
    Region::new(opened, REGION, Access::LOCAL_WRITE | right)
}

fn type_1(probe: &Probe) -> Result<(), Failure> {
    let opened = open(probe)?;
    let window = window(probe, &opened, WindowKind::Type1)?;
    let region = region(&opened, Access::MW_BIND)?;
    let unbound = window.key();
    let bed = Bed::new(probe, &opened)?;
    bed.bind(&window, &region, OPEN, Access::REMOTE_WRITE)?;
    bed.passes("first", &region, OPEN.start, window.key())?;
    bed.passes("last", &region, OPEN.end - 8, window.key())?;
    bed.keeps_out("beyond", &region, OPEN.end - 7, window.key())?;
    // The window belongs to the domain: the queue pairs that have failed do not close it.
    Bed::new(probe, &opened)?.keeps_out("old-key", &region, OPEN.start, unbound)?;
    let bed = Bed::new(probe, &opened)?;
    bed.passes("other-pair", &region, OPEN.start, window.key())?;
    bed.bind(&window, &region, OPEN, Access::REMOTE_READ)?;
    bed.keeps_out("right", &region, OPEN.start, window.key())?;
    let bed = Bed::new(probe, &opened)?;
    bed.bind(&window, &region, 0..0, Access::empty())?;
    bed.keeps_out("closed", &region, OPEN.start, window.key())
}

fn type_2(probe: &Probe) -> Result<(), Failure> {
    let opened = open(probe)?;
    let first = window(probe, &opened, WindowKind::Type2)?;
    let region = region(&opened, Access::MW_BIND)?;
    let bed = Bed::new(probe, &opened)?;
    bed.bind(&first, &region, OPEN, Access::REMOTE_WRITE)?;
    bed.passes("bound", &region, OPEN.start, first.key())?;
    bed.owner.invalidate(&first)?;
    bed.succeeds("invalidate")?;
    bed.keeps_out("invalidated", &region, OPEN.start, first.key())?;
    let second = Window::new(&opened, WindowKind::Type2)??;
    let (bed, other) = (Bed::new(probe, &opened)?, Bed::new(probe, &opened)?);
    bed.bind(&second, &region, OPEN, Access::REMOTE_WRITE)?;
    other.keeps_out("other-pair", &region, OPEN.start, second.key())?;
    bed.passes("own-pair", &region, OPEN.start, second.key())
}

fn refused_binds(probe: &Probe) -> Result<(), Failure> {
    let opened = open(probe)?;
    let first = window(probe, &opened, WindowKind::Type2)?;
    let closed = region(&opened, Access::empty())?;
    let bed = Bed::new(probe, &opened)?;
    bed.owner.bind(&first, &closed, OPEN, Access::REMOTE_WRITE)?;
    bed.fails("region-without-right")?;
    let second = Window::new(&opened, WindowKind::Type2)??;
    let open_region = region(&opened, Access::MW_BIND)?;
    let bed = Bed::new(probe, &opened)?;
    bed.bind(&second, &open_region, OPEN, Access::REMOTE_WRITE)?;
    bed.owner.bind(&second, &open_region, OPEN, Access::REMOTE_WRITE)?;
    bed.fails("bound-twice")
}
