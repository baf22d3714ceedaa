//! Translates descriptors of C programs to a batch.

use crate::error::{CallError, bad, bad_bits, non_null, non_null_mut};
use crate::pages;
use crate::requests::{self, Pending};
use crate::types::{self, gds_descriptor_t, gds_wait_value32_t, gds_write_memory_t, gds_write_value32_t};
use gdsync::advanced::raw::{DeviceRange, DeviceWord32};
use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, WordError};
use gdsync::{Batch, QueueError};
use libc::c_int;

/// The properties of the target that a batch depends on.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// True on a GPU, which needs host memory to be registered.
    pub(crate) is_cuda: bool,
    /// True if the target can flush.
    pub(crate) has_flush: bool,
}

impl Target {
    pub(crate) const CPU: Target = Target { is_cuda: false, has_flush: true };
}

/// `GDS_WAIT_COND_*`.
pub(crate) fn condition(code: c_int) -> Result<Condition, CallError> {
    match code {
        types::GDS_WAIT_COND_GEQ => Ok(Condition::Geq),
        types::GDS_WAIT_COND_EQ => Ok(Condition::Eq),
        types::GDS_WAIT_COND_AND => Ok(Condition::And),
        types::GDS_WAIT_COND_NOR => Ok(Condition::Nor),
        _ => Err(bad("the condition", code, "0 (GEQ) to 3 (NOR) are possible")),
    }
}

/// Checks that the flags have one memory type, and otherwise only allowed flags. Returns the memory type.
pub(crate) fn check_flags(flags: c_int, allowed: c_int) -> Result<c_int, CallError> {
    let kind = flags & types::GDS_MEMORY_MASK;
    let known = [types::GDS_MEMORY_GPU, types::GDS_MEMORY_HOST, types::GDS_MEMORY_IO].contains(&kind);
    if !known || flags & !(allowed | types::GDS_MEMORY_MASK) != 0 {
        return Err(bad_bits("flags", flags, "one memory type and the descriptor's own flags are possible"));
    }
    Ok(kind)
}

/// The numbers of taken requests. A drop frees the numbers.
struct Taken(Vec<u64>);

pub(crate) struct Builder {
    target: Target,
    batch: Batch,
    taken: Vec<(u64, Pending)>,
    steps: Vec<Step>,
}

/// An operation to add once all arguments are checked.
enum Step {
    Request,
    Wait(gds_wait_value32_t),
    Write(gds_write_value32_t),
    Bytes(gds_write_memory_t),
}

impl Builder {
    pub(crate) fn new(target: Target, len: usize) -> Self {
        Builder {
            target,
            batch: Batch::with_capacity(len),
            taken: Vec::new(),
            steps: Vec::with_capacity(len),
        }
    }

    /// Adds a prepared send or wait by its number.
    pub(crate) fn request(&mut self, name: u64, is_send: bool) -> Result<(), CallError> {
        self.taken.push((name, requests::take(name, is_send)?));
        self.steps.push(Step::Request);
        Ok(())
    }

    /// Adds a descriptor.
    ///
    /// # Safety
    /// Its pointers are valid.
    pub(crate) unsafe fn descriptor(&mut self, one: &gds_descriptor_t) -> Result<(), CallError> {
        // SAFETY: the tag names the member that the program has written.
        unsafe {
            match one.tag {
                types::GDS_TAG_SEND => {
                    self.request((*non_null_mut("the send request", one.body.send)?).rollback_id, true)
                }
                types::GDS_TAG_WAIT => {
                    self.request((*non_null_mut("the wait request", one.body.wait)?).peek_id, false)
                }
                types::GDS_TAG_WAIT_VALUE32 => self.wait32(one.body.wait32),
                types::GDS_TAG_WRITE_VALUE32 => self.write32(one.body.write32),
                types::GDS_TAG_WRITE_MEMORY => self.bytes(one.body.writemem),
                tag => Err(bad("the descriptor's tag", tag, "0 (send) to 4 (write memory) are possible")),
            }
        }
    }

    fn wait32(&mut self, wait: gds_wait_value32_t) -> Result<(), CallError> {
        check_flags(wait.flags, types::GDS_WAIT_POST_FLUSH_REMOTE)?;
        let condition = condition(wait.cond_flags)?;
        check_word(wait.ptr)?;
        if condition.satisfier32(wait.value).is_none() {
            return Err(
                QueueError::Word(WordError::NeverSatisfied { condition, value: wait.value.into() }).into()
            );
        }
        self.steps.push(Step::Wait(wait));
        Ok(())
    }

    fn write32(&mut self, write: gds_write_value32_t) -> Result<(), CallError> {
        check_flags(write.flags, types::GDS_WRITE_PRE_BARRIER_SYS)?;
        check_word(write.ptr)?;
        self.steps.push(Step::Write(write));
        Ok(())
    }

    fn bytes(&mut self, write: gds_write_memory_t) -> Result<(), CallError> {
        let barriers = types::GDS_WRITE_MEMORY_POST_BARRIER_SYS | types::GDS_WRITE_MEMORY_PRE_BARRIER_SYS;
        check_flags(write.flags, barriers)?;
        non_null_mut("the descriptor's dest", write.dest)?;
        non_null("the descriptor's src", write.src)?;
        if write.count > MOST_BYTES {
            let limit = "a write has at most 16 MiB: copy what is longer on the stream";
            return Err(bad("the descriptor's count", write.count as i64, limit));
        }
        self.steps.push(Step::Bytes(write));
        Ok(())
    }

    /// Returns the batch, and uses up the numbers of its requests.
    ///
    /// # Safety
    /// The memory of the descriptors is valid on the target, and stays so until that has passed them.
    pub(crate) unsafe fn finish(mut self) -> Result<Batch, CallError> {
        let mut taken = std::mem::take(&mut self.taken);
        let used = Taken(taken.iter().map(|(name, _)| *name).collect());
        let mut pending = taken.drain(..).map(|(_, pending)| pending);
        for step in std::mem::take(&mut self.steps) {
            // SAFETY: the caller passes valid pointers.
            unsafe {
                match step {
                    Step::Request => self.add_request(pending.next())?,
                    Step::Wait(wait) => self.add_wait(wait)?,
                    Step::Write(write) => self.add_write(write.ptr, write.value, write.flags)?,
                    Step::Bytes(write) => self.add_bytes(write)?,
                }
            }
        }
        drop(used);
        Ok(std::mem::take(&mut self.batch))
    }

    fn put(&mut self, add: impl FnOnce(Batch) -> Batch) {
        self.batch = add(std::mem::take(&mut self.batch));
    }

    unsafe fn add_request(&mut self, pending: Option<Pending>) -> Result<(), CallError> {
        match pending {
            Some(Pending::Send(send)) => self.put(|batch| batch.send(send)),
            Some(Pending::Sends(sends)) => {
                sends.into_iter().for_each(|send| self.put(|batch| batch.send(send)));
            }
            Some(Pending::Wait(wait, words)) => {
                self.put(|batch| batch.wait(wait));
                for (address, value) in words {
                    // SAFETY: the caller keeps the memory of the descriptors valid.
                    unsafe { self.add_write(address as *mut u32, value, types::GDS_MEMORY_HOST) }?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Returns whether the address is the target's own, and not one of host memory that needs to be registered.
    fn is_direct(&self, flags: c_int) -> bool {
        !self.target.is_cuda || flags & types::GDS_MEMORY_MASK == types::GDS_MEMORY_GPU
    }

    unsafe fn add_wait(&mut self, wait: gds_wait_value32_t) -> Result<(), CallError> {
        let (condition, address) = (condition(wait.cond_flags)?, wait.ptr as usize);
        // SAFETY: the caller passes valid pointers.
        unsafe {
            if self.is_direct(wait.flags) {
                let word = DeviceWord32::new(address as u64)?;
                self.put(|batch| batch.wait_value32(&word, condition, wait.value));
            } else {
                let word = pages::word(address)?;
                self.put(|batch| batch.wait_value32(&word, condition, wait.value));
            }
        }
        if wait.flags & types::GDS_WAIT_POST_FLUSH_REMOTE != 0 && self.target.has_flush {
            self.put(Batch::flush);
        }
        Ok(())
    }

    unsafe fn add_write(&mut self, ptr: *mut u32, value: u32, flags: c_int) -> Result<(), CallError> {
        if flags & types::GDS_WRITE_PRE_BARRIER_SYS != 0 {
            self.put(Batch::barrier);
        }
        // SAFETY: the caller passes valid pointers.
        unsafe {
            if self.is_direct(flags) {
                let word = DeviceWord32::new(ptr as u64)?;
                self.put(|batch| batch.write_value32(&word, value));
            } else {
                let word = pages::word(ptr as usize)?;
                self.put(|batch| batch.write_value32(&word, value));
            }
        }
        Ok(())
    }

    unsafe fn add_bytes(&mut self, write: gds_write_memory_t) -> Result<(), CallError> {
        if write.flags & types::GDS_WRITE_MEMORY_PRE_BARRIER_SYS != 0 {
            self.put(Batch::barrier);
        }
        // SAFETY: the caller passes readable bytes that do not change during the call.
        let bytes = unsafe { std::slice::from_raw_parts(write.src, write.count) };
        let mut at = write.dest as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            // Host memory is registered by pages, so a piece ends at a page's end.
            let (piece, after) = rest.split_at(rest.len().min(pages::PAGE - at % pages::PAGE));
            // SAFETY: the caller passes valid pointers.
            let piece = unsafe {
                if self.is_direct(write.flags) {
                    MemoryWrite::new(&DeviceRange::new(at as u64, piece.len()), 0, piece)?
                } else {
                    pages::write(at, piece)?
                }
            };
            self.put(|batch| batch.write_memory(piece));
            at += rest.len() - after.len();
            rest = after;
        }
        if write.flags & types::GDS_WRITE_MEMORY_POST_BARRIER_SYS != 0 {
            self.put(Batch::barrier);
        }
        Ok(())
    }
}

const MOST_BYTES: usize = 16 << 20;

/// Refuses a null or misaligned word.
pub(crate) fn check_word(ptr: *mut u32) -> Result<(), CallError> {
    non_null_mut("the descriptor's ptr", ptr)?;
    if (ptr as usize).is_multiple_of(size_of::<u32>()) {
        return Ok(());
    }
    Err(bad_bits("the descriptor's ptr", ptr as i64, "a word is aligned to 4 bytes"))
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.taken.drain(..).for_each(|(name, pending)| requests::put_back(name, pending));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| requests::used_up(*name));
    }
}
