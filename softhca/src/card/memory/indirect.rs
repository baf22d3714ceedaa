//! Keys that refer to other keys: memory windows and indirect keys. Work requests change them.

use super::translation::{Refusal, Translation};
use crate::card::config::{Access, KeyConfig, WindowKind};
use gdsync_sys::prm::umr::{ANY_QP, KeyAccess, KeyFields, KeyMask, UmrFlags};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyChange {
    pub(crate) key: u32,
    pub(crate) flags: UmrFlags,
    pub(crate) mask: KeyMask,
    pub(crate) fields: KeyFields,
    pub(crate) translation: Option<Translation>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("key {key:#x} cannot be changed by a work request")]
    Fixed { key: u32 },
    #[error("memory window {key:#x} is bound already")]
    Bound { key: u32 },
    #[error("key {key:#x} is no memory window of type 2 that this queue pair has bound")]
    NotOwned { key: u32 },
    #[error("a type {kind} memory window is bound as one of the other type")]
    Kind { kind: u8 },
    #[error("region {key:#x} was registered without the right to bind memory windows (IBV_ACCESS_MW_BIND)")]
    NoBind { key: u32 },
    #[error("{needed} entries of a translation, the key has room for {room}")]
    Room { needed: usize, room: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndirectKind {
    Window(WindowKind),
    Key,
}

/// A key that refers to others.
#[derive(Clone, Debug)]
pub(crate) struct Indirect {
    kind: IndirectKind,
    /// The last 8 bits of the key.
    tag: u8,
    closed: bool,
    changeable: bool,
    remote_invalidate: bool,
    /// The queue pair that may use it, or [`ANY_QP`].
    qpn: u32,
    access: Access,
    start: u64,
    len: u64,
    /// Maximum number of entries of the translation.
    room: u32,
    translation: Arc<Translation>,
}

/// A part of an indirect key that may be accessed.
pub(crate) struct Opened {
    pub(crate) translation: Arc<Translation>,
    pub(crate) offset: u64,
}

impl Indirect {
    /// Returns an unbound window.
    pub(crate) fn window(kind: WindowKind) -> Self {
        Indirect {
            kind: IndirectKind::Window(kind),
            tag: 0,
            closed: true,
            changeable: true,
            remote_invalidate: kind == WindowKind::Type2,
            qpn: ANY_QP,
            access: Access::empty(),
            start: 0,
            len: 0,
            // A window is a part of one region.
            room: 1,
            translation: Arc::default(),
        }
    }

    pub(crate) fn key(config: &KeyConfig<'_>) -> Self {
        let translation = match config.log_entity_size {
            Some(log_size) => Translation::fixed(log_size, config.entries),
            None => Translation::list(config.entries),
        };
        Indirect {
            kind: IndirectKind::Key,
            tag: config.tag,
            closed: config.closed,
            changeable: config.changeable,
            remote_invalidate: config.remote_invalidate,
            qpn: ANY_QP,
            access: config.access,
            start: config.start,
            len: config.len,
            room: config.room,
            translation: Arc::new(translation),
        }
    }

    pub(crate) fn tag(&self) -> u8 {
        self.tag
    }

    pub(crate) fn set_tag(&mut self, tag: u8) {
        self.tag = tag;
    }

    /// Checks an access, and returns the part that it covers.
    pub(crate) fn open(&self, key: u32, addr: u64, len: u64, wanted: Access) -> Result<Opened, Refusal> {
        if self.closed {
            return Err(Refusal::Closed { key });
        }
        let offset = addr.checked_sub(self.start);
        let end = offset.and_then(|offset| offset.checked_add(len));
        let (Some(offset), true) = (offset, end.is_some_and(|end| end <= self.len)) else {
            return Err(Refusal::Bounds { addr, len, region_addr: self.start, region_len: self.len });
        };
        if !self.access.contains(wanted) {
            return Err(Refusal::Access { allowed: self.access, wanted });
        }
        Ok(Opened { translation: self.translation.clone(), offset })
    }

    /// Checks that requests which arrive at a queue pair may use the key.
    pub(crate) fn check_owner(&self, key: u32, qpn: u32) -> Result<(), Refusal> {
        if self.qpn == ANY_QP || self.qpn == qpn {
            Ok(())
        } else {
            Err(Refusal::Owner { key, owner: self.qpn })
        }
    }

    /// Closes the key on behalf of a peer's send.
    pub(crate) fn invalidate(&mut self, key: u32, qpn: u32) -> Result<(), ChangeError> {
        if !self.remote_invalidate {
            return Err(ChangeError::Fixed { key });
        }
        if self.closed {
            return Err(Refusal::Closed { key }.into());
        }
        self.check_owner(key, qpn)?;
        (self.closed, self.qpn) = (true, ANY_QP);
        Ok(())
    }

    /// Returns the key after a change by a queue pair, without changing the key itself.
    pub(crate) fn changed(&self, change: &KeyChange, qpn: u32) -> Result<Indirect, ChangeError> {
        let (key, has) = (change.key, |bit| change.mask.contains(bit));
        if !self.changeable {
            return Err(ChangeError::Fixed { key });
        }
        if change.flags.contains(UmrFlags::CHECK_FREE) && !self.closed {
            return Err(ChangeError::Bound { key });
        }
        // A key that names no queue pair is every one's; a window without one is not bound.
        let is_anyones = self.qpn == ANY_QP && self.kind == IndirectKind::Key;
        let is_owned = (self.qpn == qpn || is_anyones) && self.tag == key as u8;
        if change.flags.contains(UmrFlags::CHECK_QPN) && !is_owned {
            return Err(ChangeError::NotOwned { key });
        }
        if let IndirectKind::Window(kind) = self.kind
            && has(KeyMask::QPN) != (kind == WindowKind::Type2)
        {
            return Err(ChangeError::Kind { kind: if kind == WindowKind::Type1 { 1 } else { 2 } });
        }
        let mut next = self.clone();
        let fields = &change.fields;
        for (bit, right, is_set) in [
            (KeyMask::LOCAL_WRITE, Access::LOCAL_WRITE, fields.access.contains(KeyAccess::LOCAL_WRITE)),
            (KeyMask::REMOTE_READ, Access::REMOTE_READ, fields.access.contains(KeyAccess::REMOTE_READ)),
            (KeyMask::REMOTE_WRITE, Access::REMOTE_WRITE, fields.access.contains(KeyAccess::REMOTE_WRITE)),
            (KeyMask::ATOMIC, Access::REMOTE_ATOMIC, fields.access.contains(KeyAccess::ATOMIC)),
        ] {
            if has(bit) {
                next.access.set(right, is_set);
            }
        }
        if has(KeyMask::FREE) {
            next.closed = fields.closed;
        }
        if has(KeyMask::QPN) {
            next.qpn = fields.qpn;
        }
        if has(KeyMask::TAG) {
            next.tag = fields.tag;
        }
        if has(KeyMask::START_ADDR) {
            next.start = fields.start_addr;
        }
        if has(KeyMask::LEN) {
            next.len = fields.len;
        }
        if let Some(translation) = &change.translation {
            let needed = translation.entries();
            if needed > self.room as usize {
                return Err(ChangeError::Room { needed, room: self.room });
            }
            next.translation = Arc::new(translation.clone());
        }
        Ok(next)
    }

    /// Returns the rights that a bound window needs of its region, and its ranges there.
    pub(crate) fn binding(&self) -> Option<(Access, &Translation, u64)> {
        let needs_write = self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let wanted = if needs_write { Access::LOCAL_WRITE } else { Access::empty() };
        let is_window = matches!(self.kind, IndirectKind::Window(_));
        (is_window && !self.closed).then_some((wanted | Access::MW_BIND, &*self.translation, self.len))
    }
}

/// Returns the right that an access needs of the key behind an indirect one; remote rights are checked at the indirect
/// key itself.
pub(crate) fn behind(wanted: Access) -> Access {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if wanted.intersects(writes) { Access::LOCAL_WRITE } else { Access::empty() }
}
