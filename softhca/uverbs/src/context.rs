//! An open device: its objects, and the way from a command to the module that performs it.

use crate::attributes::Request;
use crate::card::OpenCard;
use crate::channel::Channels;
use crate::devx::abi::object as kind;
use crate::errno::{Errno, Result};
use crate::events::EventPipe;
use crate::uapi::ioctl::{method, object};
use crate::{ah, channel, cq, device, devx, mr, pd, port, qp, uar, write};
use parking_lot::Mutex;
use softhca::card::Card;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Something that a context owns, by its handle.
#[derive(Debug)]
pub(crate) enum Object {
    Pd(pd::Pd),
    Ah(ah::Ah),
    Mr(mr::Mr),
    Uar(uar::Uar),
    Cq(cq::Cq),
    Qp(Box<qp::Qp>),
    /// Made by a command of the device's own language.
    Devx(Box<devx::Object>),
}

impl Object {
    /// Objects are destroyed in this order when the context goes: users first.
    fn rank(&self) -> u8 {
        match self {
            Object::Qp(_) => 0,
            Object::Ah(_) => 1,
            Object::Cq(_) => 2,
            Object::Mr(_) => 3,
            Object::Uar(_) => 4,
            Object::Pd(_) => 5,
            Object::Devx(object) => object.rank(),
        }
    }

    /// Takes it from the card.
    fn destroy(&self, card: &OpenCard) -> Result<()> {
        match self {
            Object::Pd(pd) => pd.destroy(card),
            Object::Ah(_) => Ok(()),
            Object::Mr(mr) => mr.destroy(card),
            Object::Uar(uar) => uar.destroy(card),
            Object::Cq(cq) => cq.destroy(card).map(|_| ()),
            Object::Qp(qp) => qp.destroy(card).map(|_| ()),
            Object::Devx(object) => object.destroy(card),
        }
    }
}

/// Objects of all kinds have one space of handles.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    last: u32,
    by_handle: BTreeMap<u32, Object>,
    /// Handles of UARs, by the number of their page.
    pages: HashMap<u32, u32>,
}

impl Objects {
    pub(crate) fn add(&mut self, object: Object) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if let std::collections::btree_map::Entry::Vacant(place) = self.by_handle.entry(self.last) {
                if let Object::Uar(uar) = &object {
                    self.pages.insert(uar.id, self.last);
                }
                place.insert(object);
                return self.last;
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.by_handle.values()
    }

    /// What commands of the device's own language made.
    pub(crate) fn devx(&self) -> impl Iterator<Item = &devx::Object> {
        self.iter()
            .filter_map(|object| if let Object::Devx(object) = object { Some(&**object) } else { None })
    }

    pub(crate) fn get(&self, handle: u32) -> Result<&Object> {
        self.by_handle.get(&handle).ok_or(Errno::INVALID)
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Result<&mut Object> {
        self.by_handle.get_mut(&handle).ok_or(Errno::INVALID)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<Object> {
        let removed = self.by_handle.remove(&handle);
        if let Some(Object::Uar(uar)) = &removed {
            self.pages.remove(&uar.id);
        }
        removed
    }

    pub(crate) fn pd(&self, handle: u32) -> Result<&pd::Pd> {
        if let Object::Pd(pd) = self.get(handle)? { Ok(pd) } else { Err(Errno::INVALID) }
    }

    pub(crate) fn cq(&self, handle: u32) -> Result<&cq::Cq> {
        if let Object::Cq(cq) = self.get(handle)? { Ok(cq) } else { Err(Errno::INVALID) }
    }

    /// The UAR page of that number, if it is one of the context's.
    pub(crate) fn uar(&self, page_id: u32) -> Result<&uar::Uar> {
        let handle = self.pages.get(&page_id).ok_or(Errno::INVALID)?;
        if let Object::Uar(uar) = self.get(*handle)? { Ok(uar) } else { Err(Errno::INVALID) }
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) open: Arc<OpenCard>,
    /// Commands of one context come one after the other, as the lock says.
    pub(crate) objects: Mutex<Objects>,
    pub(crate) async_events: Arc<EventPipe>,
    /// The program's end, to be given away, as often as it is asked for.
    pub(crate) async_fd: OwnedFd,
    pub(crate) channels: Arc<Channels>,
}

impl Context {
    pub(crate) fn new(open: Arc<OpenCard>, channels: Arc<Channels>) -> Result<Self> {
        let (async_events, async_fd) = EventPipe::new()?;
        let async_events = Arc::new(async_events);
        Ok(Context { open, objects: Mutex::default(), async_events, async_fd, channels })
    }

    pub(crate) fn card(&self) -> &Card {
        &self.open.card
    }

    /// Performs a command.
    pub(crate) fn perform(&self, request: &Request) -> Result<()> {
        match (request.object, request.method) {
            (object::DEVICE, method::INVOKE_WRITE) => write::invoke(self, request),
            (object::DEVICE, method::GET_CONTEXT) => device::get_context(request),
            (object::DEVICE, method::QUERY_CONTEXT) => device::query_context(request),
            (object::DEVICE, method::QUERY_PORT) => port::query(self, request),
            (object::DEVICE, method::QUERY_GID_TABLE) => port::query_gid_table(self, request),
            (object::DEVICE, method::QUERY_GID_ENTRY) => port::query_gid_entry(self, request),
            (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => channel::alloc_async(self, request),
            (object::PD, method::ONLY_DESTROY) => pd::destroy(self, request),
            (object::PD, method::PD_QUERY) => pd::query(self, request),
            (object::AH, method::ONLY_DESTROY) => ah::destroy(self, request),
            (object::MR, method::MR_DESTROY) => mr::destroy(self, request),
            (object::MR, method::MR_QUERY) => mr::query(self, request),
            (object::MR, method::MR_REG) => mr::register_any(self, request),
            (object::MR, method::MR_REG_DMABUF) => mr::register_dmabuf(self, request),
            (object::UAR, method::UAR_ALLOC) => uar::alloc(self, request),
            (object::UAR, method::UAR_DESTROY) => uar::destroy(self, request),
            (object::CQ, method::CREATE) => cq::create(self, request),
            (object::CQ, method::DESTROY) => cq::destroy(self, request),
            (object::QP, method::CREATE) => qp::create(self, request),
            (object::QP, method::DESTROY) => qp::destroy(self, request),
            (kind::DEVX | kind::DEVX_OBJ | kind::DEVX_UMEM, _) => devx::perform(self, request),
            (object, method) => {
                tracing::info!(object, method, "a command that the software card does not have");
                Err(Errno::UNKNOWN)
            }
        }
    }

    /// Takes an object from the card, and its handle from the context. Nothing has changed if the card refuses.
    pub(crate) fn destroy<R>(
        &self,
        handle: u32,
        destroy: impl FnOnce(&Objects, &Object, &OpenCard) -> Result<R>,
    ) -> Result<R> {
        let mut objects = self.objects.lock();
        let result = destroy(&objects, objects.get(handle)?, &self.open)?;
        let removed = objects.remove(handle);
        drop(objects);
        // Only now: what goes with it may close files, and that is a hook of ours.
        drop(removed);
        Ok(result)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.objects.get_mut().by_handle);
        let mut objects: Vec<Object> = objects.into_values().collect();
        objects.sort_by_key(Object::rank);
        // No mistake, but what leaks in a program that lives on.
        for object in objects.iter().filter(|object| matches!(object, Object::Devx(_))) {
            tracing::info!(?object, "not destroyed by the program before it closed the device");
        }
        for object in objects {
            if let Err(errno) = object.destroy(&self.open) {
                tracing::error!(?object, ?errno, "left in the card at the end of its context");
            }
        }
    }
}
