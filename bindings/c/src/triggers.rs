//! Triggers that C programs have names of.

use crate::named::Named;
use crate::types::gdsync_trigger;
use gdsync::{Device, ProtectionDomain, Trigger};
use gdsync_sys::verbs::{ibv_context, ibv_pd};

/// What a `gdsync_trigger_t *` stands for.
pub(crate) struct TriggerObject {
    pub(crate) trigger: Trigger,
    /// Of which its queue pairs are.
    pub(crate) domain: (Device, ProtectionDomain),
    /// The same, by the names that the program has of them.
    pub(crate) context: usize,
    pub(crate) pd: usize,
}

impl TriggerObject {
    pub(crate) fn context(&self) -> *mut ibv_context {
        std::ptr::with_exposed_provenance_mut(self.context)
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        std::ptr::with_exposed_provenance_mut(self.pd)
    }
}

pub(crate) static TRIGGERS: Named<gdsync_trigger, TriggerObject> =
    Named::new("the trigger", "pass what gdsync_trigger_create returned, until gdsync_trigger_free");
