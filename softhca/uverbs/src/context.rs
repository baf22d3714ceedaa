//! An open device, and the objects that a program has created through it.
//!
//! This module depends on no module of objects or commands: those modules give each [`Object`] its state, and
//! `commands` finds the function for a command.

use crate::calls;
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::events::files::Channels;
use crate::events::files::EventPipe;
use crate::events::routes::Reported;
use crate::heritage::Heritage;
use crate::resource::Resource;
use crate::uapi::devx::object as devx;
use crate::uapi::ioctl::method;
use parking_lot::Mutex;
use softhca::card::Card;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An object that a context owns under a handle.
#[derive(Debug)]
pub(crate) struct Object {
    /// The kind that a command must name to destroy it, from `uapi`.
    kind: u16,
    pub(crate) resource: Option<Resource>,
    /// Handles of objects that must outlive it, unless the card counts their users.
    uses: Vec<u32>,
    state: Box<dyn Any + Send>,
}

impl Object {
    pub(crate) fn new(kind: u16, resource: impl Into<Option<Resource>>) -> Self {
        Object { kind, resource: resource.into(), uses: Vec::new(), state: Box::new(()) }
    }

    /// Adds the state that only the module of this kind knows.
    pub(crate) fn with(self, state: impl Any + Send) -> Self {
        Object { state: Box::new(state), ..self }
    }

    pub(crate) fn using(self, handles: impl Into<Vec<u32>>) -> Self {
        Object { uses: handles.into(), ..self }
    }

    pub(crate) fn state<T: Any>(&self) -> Option<&T> {
        self.state.downcast_ref()
    }
}

/// The objects of a context. All kinds share one space of handles.
#[derive(Debug)]
pub(crate) struct Objects {
    heritage: Arc<Heritage>,
    by_handle: BTreeMap<u32, Object>,
    resources: HashSet<Resource>,
    /// Handles of used objects, each with a user's handle.
    users: BTreeSet<(u32, u32)>,
}

impl Objects {
    fn new(heritage: Arc<Heritage>) -> Self {
        let (by_handle, resources, users) = (BTreeMap::new(), HashSet::new(), BTreeSet::new());
        Objects { heritage, by_handle, resources, users }
    }

    pub(crate) fn add(&mut self, object: Object) -> u32 {
        loop {
            let handle = self.heritage.next_handle();
            if !self.by_handle.contains_key(&handle) {
                self.put(handle, object);
                return handle;
            }
        }
    }

    /// Adds an object under a handle that is free.
    pub(crate) fn put(&mut self, handle: u32, object: Object) {
        self.resources.extend(object.resource);
        self.users.extend(object.uses.iter().map(|used| (*used, handle)));
        self.by_handle.insert(handle, object);
    }

    /// Returns the object of a handle; ENOENT if there is none, as in `lookup_get_idr_uobject`.
    pub(crate) fn get(&self, handle: u32) -> Result<&Object> {
        self.by_handle.get(&handle).ok_or(Errno::NO_ENTRY)
    }

    /// Checks a handle, whose object must have this kind, if one is given.
    pub(crate) fn check(&self, kind: Option<u16>, handle: u32) -> Result<()> {
        let object = self.get(handle)?;
        if kind.is_none_or(|kind| object.kind == kind) { Ok(()) } else { Err(Errno::INVALID) }
    }

    /// Returns the resource number of a handle, whose object must have this kind.
    pub(crate) fn number(&self, kind: u16, handle: u32) -> Result<u32> {
        self.resource(kind, handle).map(Resource::number)
    }

    /// Returns the resource of a handle, whose object must have this kind.
    pub(crate) fn resource(&self, kind: u16, handle: u32) -> Result<Resource> {
        let object = self.get(handle)?;
        object.resource.filter(|_| object.kind == kind).ok_or(Errno::INVALID)
    }

    /// Returns the state of a handle's object, which must be a `T`.
    pub(crate) fn state<T: Any>(&self, handle: u32) -> Result<&T> {
        self.get(handle)?.state().ok_or(Errno::INVALID)
    }

    pub(crate) fn state_mut<T: Any>(&mut self, handle: u32) -> Result<&mut T> {
        let object = self.by_handle.get_mut(&handle).ok_or(Errno::NO_ENTRY)?;
        object.state.downcast_mut().ok_or(Errno::INVALID)
    }

    /// Returns whether an object of the card belongs to this context.
    pub(crate) fn has(&self, resource: Resource) -> bool {
        self.resources.contains(&resource)
    }

    /// Returns all states of a type.
    pub(crate) fn states<T: Any>(&self) -> impl Iterator<Item = &T> {
        self.by_handle.values().filter_map(Object::state)
    }

    fn users(&self, handle: u32) -> usize {
        self.users.range((handle, 0)..=(handle, u32::MAX)).count()
    }

    fn remove(&mut self, handle: u32) -> Option<Object> {
        let removed = self.by_handle.remove(&handle)?;
        if let Some(resource) = removed.resource {
            self.resources.remove(&resource);
        }
        for used in &removed.uses {
            self.users.remove(&(*used, handle));
        }
        Some(removed)
    }
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) open: Arc<OpenCard>,
    pub(crate) objects: Mutex<Objects>,
    pub(crate) async_events: Arc<EventPipe>,
    /// The read end of `async_events`, of which the program gets duplicates.
    pub(crate) async_fd: OwnedFd,
    pub(crate) channels: Arc<Channels>,
    /// The pages of registers given out, among others.
    pub(crate) heritage: Arc<Heritage>,
    /// Its number in the process, under which the channels know their owner.
    pub(crate) id: u64,
}

impl Context {
    pub(crate) fn new(open: Arc<OpenCard>, channels: Arc<Channels>, heritage: Heritage) -> Result<Self> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let (async_events, async_fd) = EventPipe::new()?;
        let (async_events, heritage) = (Arc::new(async_events), Arc::new(heritage));
        let objects = Mutex::new(Objects::new(heritage.clone()));
        let id = CREATED.fetch_add(1, Ordering::Relaxed);
        Ok(Context { open, objects, async_events, async_fd, channels, heritage, id })
    }

    pub(crate) fn card(&self) -> &Card {
        &self.open.card
    }

    /// Checks that the program has asked for its context, as every command but that must (`ib_uverbs_get_ucontext`).
    pub(crate) fn check_begun(&self) -> Result<()> {
        if self.heritage.begun().is_some() {
            return Ok(());
        }
        tracing::warn!("a command before GET_CONTEXT");
        Err(Errno::INVALID)
    }

    /// Destroys an object of a kind. Changes nothing if the object is in use or the card refuses.
    pub(crate) fn destroy(&self, kind: u16, handle: u32) -> Result<Reported> {
        let mut objects = self.objects.lock();
        let object = objects.get(handle)?;
        if object.kind != kind {
            return Err(Errno::INVALID);
        }
        let users = objects.users(handle);
        if users > 0 {
            let object = calls::of_method(kind, method::DESTROY);
            tracing::warn!(object, handle, users, "it is in use: destroy its users first");
            return Err(Errno::BUSY);
        }
        let reported = destroy_on(&self.open, object)?;
        let removed = objects.remove(handle);
        drop(objects);
        // After the lock is released, because the object may close files, which a hook notices.
        drop(removed);
        Ok(reported)
    }
}

/// Destroys an object on the card, and ends the delivery of its events.
fn destroy_on(open: &OpenCard, object: &Object) -> Result<Reported> {
    let Some(resource) = object.resource else { return Ok(Reported::default()) };
    resource.destroy(&open.card)?;
    Ok(open.routes.remove(resource))
}

impl Drop for Context {
    fn drop(&mut self) {
        self.channels.end(self.id);
        let objects = std::mem::take(&mut self.objects.get_mut().by_handle);
        let mut objects: Vec<Object> = objects.into_values().collect();
        // User memory has no resource: it comes last, after the card's objects in it.
        objects.sort_by_key(|object| (object.resource.is_none(), object.resource));
        // Not an error of the program, but a leak if it continues to run.
        let leaked = |object: &&Object| [devx::DEVX_OBJ, devx::DEVX_UMEM].contains(&object.kind);
        for object in objects.iter().filter(leaked) {
            tracing::info!(?object, "not destroyed by the program before it closed the device");
        }
        for object in objects {
            if let Err(errno) = destroy_on(&self.open, &object) {
                tracing::error!(?object, ?errno, "left in the card at the end of its context");
            }
        }
    }
}
