//! Giving commands to the device, and the objects that they make.

use crate::verbs::devx::{check, failure};
use crate::verbs::{DeviceInner, DevxError, Error, call};
use gdsync_sys::api::DevxApi;
use gdsync_sys::mlx5dv::mlx5dv_devx_obj;
use gdsync_sys::prm::command::encode::{ANSWER, Command, Transition};
use gdsync_sys::prm::command::{cap, header, qpc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// The entry points, where the provider has them.
pub(super) fn api_of(device: &DeviceInner) -> Result<&'static DevxApi, DevxError> {
    device.api.devx.as_ref().ok_or_else(|| DevxError::Unavailable {
        device: device.name.to_owned(),
        reason: "its provider has no DEVX: it is the software card of this process, or libmlx5 is older than rdma-core 21",
    })
}

/// An object of the device, made by a command. Destroyed when dropped, if not before.
#[derive(Debug)]
pub(super) struct Object {
    raw: Option<NonNull<mlx5dv_devx_obj>>,
    pub(super) number: u32,
    api: &'static DevxApi,
    /// Keeps the context open.
    _device: Arc<DeviceInner>,
}

// SAFETY: libmlx5 lets an object be changed and destroyed from any thread: it is a handle, and the
// kernel does the rest.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// `command` is its name, `detail` what is asked for.
    pub(super) fn create(
        device: &Arc<DeviceInner>,
        command: &'static str,
        input: &Command,
        detail: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        let api = api_of(device)?;
        let mut answer = [0u8; ANSWER];
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the context is open; both buffers have the lengths that are given.
        let raw = unsafe { (api.obj_create)(device.context(), asked, input.len(), told, ANSWER) };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            return Err(failure(command, detail(), &answer, source));
        };
        let number = header::NUMBER.get32(&answer);
        Ok(Object { raw: Some(raw), number, api, _device: device.clone() })
    }

    /// Moves a queue pair to another state.
    pub(super) fn modify(&self, transition: &Transition) -> Result<(), Error> {
        // Gone already: what is destroyed has no state that could matter.
        let Some(raw) = self.raw else { return Ok(()) };
        let input = transition.encode(self.number);
        let mut answer = [0u8; ANSWER];
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the object was made by `create` and not destroyed; both buffers have the lengths
        // that are given.
        let rc = unsafe { (self.api.obj_modify)(raw.as_ptr(), asked, input.len(), told, ANSWER) };
        let detail = || format!("queue pair {:#x}", self.number);
        check(transition.name(), rc, &answer, detail)
    }

    /// After this, the device touches nothing of what the object was made of.
    pub(super) fn destroy(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: made by `create`, and destroyed once.
            call::on_drop("mlx5dv_devx_obj_destroy", unsafe { (self.api.obj_destroy)(raw.as_ptr()) });
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// The event queue that a completion queue names, though it is never armed.
pub(super) fn event_queue(device: &DeviceInner) -> Result<u32, Error> {
    let mut number = 0;
    // SAFETY: the context is open, and the place is valid.
    let rc = unsafe { (api_of(device)?.query_eqn)(device.context(), 0, &mut number) };
    call::status("mlx5dv_devx_query_eqn", rc, || "completion vector 0".to_owned())?;
    Ok(number)
}

/// The format of time stamps that a queue pair must ask for: a device that has other than
/// free-running ones may be set to them, and then refuses the rest.
pub(super) fn timestamp_format(device: &DeviceInner) -> Result<u8, Error> {
    let general = device.capabilities(cap::TYPE_GENERAL)?;
    let formats = if cap::ROCE.is_set(&general) {
        cap::QP_TS_FORMAT.get(&device.capabilities(cap::TYPE_ROCE)?)
    } else {
        cap::SQ_TS_FORMAT.get(&general)
    };
    Ok(if formats == 0 { qpc::TS_FREE_RUNNING } else { qpc::TS_DEFAULT })
}
