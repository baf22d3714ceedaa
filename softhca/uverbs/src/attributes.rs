//! A command as the program passes it to ioctl(2): a header, then attributes.
//!
//! Only this module accesses memory that a command points to. Memory that is not mapped is EFAULT.

use crate::calls;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::{ATTR_MANDATORY, ATTR_VALID_OUTPUT, Attr, DRIVER_MLX5, Header};
use crate::uapi::methods::{Spec, Value};
use softhca::card::is_mapped;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Limit on the bytes of a command without what its attributes point to: a page.
const MAX_LENGTH: usize = 4096;
/// Values of at most this many bytes are in the attribute itself.
const INLINE: usize = size_of::<u64>();

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) object: u16,
    pub(crate) method: u16,
    attributes: Vec<Attribute>,
}

#[derive(Clone, Copy, Debug)]
struct Attribute {
    attr: Attr,
    /// Address of the attribute in the program's memory.
    place: u64,
}

pub(crate) fn load(addr: u64, bytes: &mut [u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    if !is_mapped(addr, bytes.len() as u64, false) {
        return Err(Errno::FAULT);
    }
    // SAFETY: `is_mapped` found the range mapped, and the interface obliges the program to keep it mapped
    // during the command. The target is private to the caller, so the ranges do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    Ok(())
}

pub(crate) fn store(addr: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    if !is_mapped(addr, bytes.len() as u64, true) {
        return Err(Errno::FAULT);
    }
    // SAFETY: as in `load`; the interface obliges the program not to use the range of an answer during the command.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    Ok(())
}

/// Returns the handle in an attribute. The program writes a signed 64-bit number, and no object has one of more than 32
/// bits (`lookup_get_idr_uobject`).
pub(crate) fn handle_of(data: u64) -> Result<u32> {
    if (data as i64) < 0 { Err(Errno::INVALID) } else { u32::try_from(data).map_err(|_| Errno::NO_ENTRY) }
}

/// Returns the descriptor in an attribute, as `lookup_get_fd_uobject`.
pub(crate) fn fd_of(data: u64) -> Result<i32> {
    i32::try_from(data as i64).map_err(|_| Errno::INVALID)
}

impl Request {
    /// Reads a command at `addr`. A malformed header gets the error of `ib_uverbs_ioctl`, and a method that is not
    /// `known` that of `ib_uverbs_cmd_verbs`.
    pub(crate) fn read(addr: u64, known: impl Fn(u16, u16) -> bool) -> Result<Request> {
        let mut header = [0; size_of::<Header>()];
        load(addr, &mut header)?;
        let header = Header::read_from_bytes(&header).map_err(|_| Errno::INVALID)?;
        let count = usize::from(header.num_attrs);
        let length = size_of::<Header>() + count * size_of::<Attr>();
        if length > MAX_LENGTH || usize::from(header.length) != length {
            return Err(Errno::INVALID);
        }
        if (header.reserved1, header.reserved2) != (0, 0) {
            return Err(Errno::UNKNOWN);
        }
        if header.driver_id != DRIVER_MLX5 {
            tracing::warn!(header.driver_id, "a command for a driver other than mlx5");
            return Err(Errno::INVALID);
        }
        if !known(header.object_id, header.method_id) {
            let call = calls::of_method(header.object_id, header.method_id);
            tracing::info!(call, "the software card does not have this");
            return Err(Errno::UNKNOWN);
        }
        let place = |i: usize| addr.wrapping_add((size_of::<Header>() + i * size_of::<Attr>()) as u64);
        let mut bytes = vec![0; count * size_of::<Attr>()];
        load(place(0), &mut bytes)?;
        let attributes = bytes.chunks_exact(size_of::<Attr>()).enumerate().map(|(i, bytes)| {
            let attr = Attr::read_from_bytes(bytes).map_err(|_| Errno::INVALID)?;
            Ok(Attribute { attr, place: place(i) })
        });
        Ok(Request {
            object: header.object_id,
            method: header.method_id,
            attributes: attributes.collect::<Result<_>>()?,
        })
    }

    fn find(&self, id: u16) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.attr.attr_id == id)
    }

    fn need(&self, id: u16) -> Result<&Attribute> {
        self.find(id).ok_or(Errno::INVALID)
    }

    /// Checks the attributes as a kernel does before it calls the method's function (`uverbs_set_attr`): one after the
    /// other, then whether those that the method needs are there. `resolve` looks objects and files up.
    pub(crate) fn check(&self, specs: &[Spec], resolve: impl Fn(Value, u64) -> Result<()>) -> Result<()> {
        for (i, Attribute { attr, .. }) in self.attributes.iter().enumerate() {
            let Some(spec) = specs.iter().find(|spec| spec.id == attr.attr_id) else {
                if attr.flags & ATTR_MANDATORY == 0 {
                    continue;
                }
                let call = calls::of_method(self.object, self.method);
                let attribute = calls::of_attribute(self.object, self.method, attr.attr_id);
                tracing::warn!(call, attribute, "the software card does not have this");
                return Err(Errno::UNKNOWN);
            };
            if self.attributes[..i].iter().any(|before| before.attr.attr_id == attr.attr_id) {
                return Err(self.refuse(attr, "given twice"));
            }
            self.check_value(spec, attr)?;
            resolve(spec.value, attr.data)?;
        }
        match specs.iter().find(|spec| spec.is_needed && !self.has(spec.id)) {
            None => Ok(()),
            Some(spec) => {
                let call = calls::of_method(self.object, self.method);
                tracing::warn!(call, attribute = spec.id, "an attribute is missing");
                Err(Errno::INVALID)
            }
        }
    }

    fn check_value(&self, spec: &Spec, attr: &Attr) -> Result<()> {
        let is_open = match spec.value {
            Value::Input { is_open } => {
                let max = usize::from(spec.max);
                if is_open
                    && self.bytes(spec.id)?.get(max..).is_some_and(|more| more.iter().any(|byte| *byte != 0))
                {
                    return Err(self.refuse_newer());
                }
                is_open
            }
            Value::Output { is_open } => is_open,
            _ => false,
        };
        let is_between = spec.value == Value::Flags && attr.len != spec.min && attr.len != spec.max;
        if attr.len < spec.min || attr.len > spec.max && !is_open || is_between {
            return Err(self.refuse(attr, "of another length"));
        }
        if attr.attr_data != 0 {
            return Err(self.refuse(attr, "with a reserved field"));
        }
        Ok(())
    }

    fn refuse(&self, attr: &Attr, what: &str) -> Errno {
        let call = calls::of_method(self.object, self.method);
        tracing::warn!(call, attribute = attr.attr_id, attr.len, "an attribute is {what}");
        Errno::INVALID
    }

    fn refuse_newer(&self) -> Errno {
        let call = calls::of_method(self.object, self.method);
        tracing::warn!(call, "a structure has more fields than the card knows");
        Errno::NOT_SUPPORTED
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Returns the length of an attribute in bytes; 0 if it is missing.
    pub(crate) fn len(&self, id: u16) -> usize {
        self.find(id).map_or(0, |attribute| usize::from(attribute.attr.len))
    }

    /// Returns the bytes of an input attribute; none if it is missing.
    pub(crate) fn bytes(&self, id: u16) -> Result<Vec<u8>> {
        let Some(Attribute { attr, .. }) = self.find(id) else { return Ok(Vec::new()) };
        let len = usize::from(attr.len);
        if len <= INLINE {
            return Ok(attr.data.as_bytes()[..len].to_vec());
        }
        let mut bytes = vec![0; len];
        load(attr.data, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns an input structure. The missing fields of an older program are zero; the additional fields of
    /// a newer program must be zero.
    pub(crate) fn structure<T: FromBytes + IntoBytes>(&self, id: u16) -> Result<T> {
        let bytes = self.bytes(id)?;
        let mut value = T::new_zeroed();
        let size = size_of::<T>().min(bytes.len());
        value.as_mut_bytes()[..size].copy_from_slice(&bytes[..size]);
        if bytes[size..].iter().any(|byte| *byte != 0) {
            return Err(self.refuse_newer());
        }
        Ok(value)
    }

    /// Returns a number of at most 64 bits.
    pub(crate) fn number(&self, id: u16) -> Result<u64> {
        self.need(id)?;
        let bytes = self.bytes(id)?;
        let mut value = [0; INLINE];
        value.get_mut(..bytes.len()).ok_or(Errno::INVALID)?.copy_from_slice(&bytes);
        Ok(u64::from_ne_bytes(value))
    }

    pub(crate) fn optional_number(&self, id: u16) -> Result<Option<u64>> {
        self.has(id).then(|| self.number(id)).transpose()
    }

    pub(crate) fn number32(&self, id: u16) -> Result<u32> {
        u32::try_from(self.number(id)?).map_err(|_| Errno::INVALID)
    }

    /// Returns a number of flags; 0 if the attribute is missing.
    pub(crate) fn flags32(&self, id: u16) -> Result<u32> {
        if self.has(id) { self.number32(id) } else { Ok(0) }
    }

    pub(crate) fn handle(&self, id: u16) -> Result<u32> {
        handle_of(self.need(id)?.attr.data)
    }

    pub(crate) fn fd(&self, id: u16) -> Result<i32> {
        fd_of(self.need(id)?.attr.data)
    }

    /// Fills an output attribute, cut to the program's room and padded with zeros to its end. Does nothing if
    /// the attribute is missing.
    pub(crate) fn answer(&self, id: u16, bytes: &[u8]) -> Result<()> {
        let Some(attribute) = self.find(id) else { return Ok(()) };
        let room = usize::from(attribute.attr.len);
        let mut whole = bytes.to_vec();
        whole.resize(room, 0);
        store(attribute.attr.data, &whole)?;
        self.mark(attribute)
    }

    /// Fills an output attribute with a structure or number.
    pub(crate) fn answer_with<T: IntoBytes + Immutable>(&self, id: u16, value: &T) -> Result<()> {
        self.answer(id, value.as_bytes())
    }

    /// Answers with a new handle or file descriptor, in the attribute itself.
    pub(crate) fn answer_created(&self, id: u16, created: u32) -> Result<()> {
        let attribute = self.need(id)?;
        store(attribute.place + std::mem::offset_of!(Attr, data) as u64, &u64::from(created).to_ne_bytes())?;
        self.mark(attribute)
    }

    fn mark(&self, attribute: &Attribute) -> Result<()> {
        let flags = attribute.attr.flags | ATTR_VALID_OUTPUT;
        store(attribute.place + std::mem::offset_of!(Attr, flags) as u64, &flags.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests;
