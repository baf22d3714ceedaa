//! Devices of the parent, in the child of a fork.
//!
//! With a kernel, child and parent use the same objects through an inherited file. Here the card runs in the parent, and the
//! child gets another card under the same descriptor at its first command. libmlx5 in the child continues with the
//! pages of doorbell registers that it has mapped in the parent, so the child's card has the same pages, under the same
//! handles and numbers. No other object of the parent exists there.

use super::{context, prepare, process};
use crate::card::cannot_start;
use crate::context::Context;
use crate::descriptors::{self, FdKind};
use crate::errno::{Errno, Result};
use crate::heritage::{self, Heritage};
use crate::verbs::pages;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Returns what the parent has left of the device of a descriptor; `None` if the descriptor is another file by now.
pub(super) fn parents(fd: RawFd) -> Option<&'static Heritage> {
    if !descriptors::has(FdKind::Inherited, fd) {
        return None;
    }
    // SAFETY: null, the parent's, which kept it while it was entered and whose devices this process never frees, or that of a
    // device that another thread opens here at this moment, which lives until the program closes it.
    let heritage = unsafe { heritage::of(fd).as_ref() }?;
    let inode = heritage::inode(fd).ok()?;
    // The successor, while another thread opens the device.
    let is_it = inode == heritage.inode || inode == heritage.successor.load(Ordering::Acquire);
    is_it.then_some(heritage)
}

/// Makes a descriptor the same file as another, and keeps whether it closes on execve(2).
fn replace(fd: RawFd, file: RawFd) -> Result<()> {
    // SAFETY: the calls access no memory of the process. The second is a system call, as the hook of dup3(2) would close
    // the device.
    let replaced = unsafe {
        let closes = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        libc::syscall(libc::SYS_dup3, file, fd, if closes { libc::O_CLOEXEC } else { 0 })
    };
    if replaced < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Opens a device of the parent that this process has not used yet; `None` if the descriptor is another file by now.
/// Takes no lock then, as the library's own calls of hooks come here, too.
pub(crate) fn open_inherited(fd: RawFd) -> Result<Option<Arc<Context>>> {
    let Some((index, inode)) = parents(fd).map(|parents| (parents.index, parents.inode)) else {
        return Ok(None);
    };
    prepare()?;
    let process = process();
    let _only = process.inheriting.lock();
    if let Some(context) = context(fd) {
        return Ok(Some(context));
    }
    // Another: the numbers of pages on a card that runs already may be those of the parent's.
    let open = process.cards.open_another(index)?;
    let file = open.card.uar_file().map_err(cannot_start)?;
    let own = heritage::inode(file.as_raw_fd())?;
    // Devices of one card share its file, and duplicates of a descriptor share the device.
    let mut devices = BTreeMap::<*const Heritage, (Context, Vec<RawFd>)>::new();
    let mut uars = Vec::new();
    for fd in descriptors::between(0, u32::MAX) {
        let Some(parents) = parents(fd).filter(|parents| parents.inode == inode) else { continue };
        match devices.entry(ptr::from_ref(parents)) {
            Entry::Occupied(device) => device.into_mut().1.push(fd),
            Entry::Vacant(place) => {
                let heritage = parents.for_child(own);
                let context = Context::new(open.clone(), process.channels.clone(), heritage)?;
                place.insert((context, vec![fd]));
                uars.extend(parents.all_registers().map(|registers| (registers.id, registers.offset)));
                parents.successor.store(own, Ordering::Release);
            }
        }
    }
    open.card.inherit_uars(inode, &uars, pages::REGISTERS).map_err(cannot_start)?;
    for (device, fds) in devices.into_values() {
        pages::inherit_registers(&device);
        let device = Arc::new(device);
        // Others have been closed meanwhile.
        for fd in fds.into_iter().filter(|fd| replace(*fd, file.as_raw_fd()).is_ok()) {
            process.add(fd, device.clone())?;
        }
    }
    tracing::info!(
        device = index,
        "a device of the parent: this child of a fork has a card without the parent's objects"
    );
    Ok(context(fd))
}
