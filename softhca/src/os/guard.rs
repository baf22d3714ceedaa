//! Accesses to a program's memory that survive if the program has unmapped or protected it.
//!
//! A card pins the pages of registered memory and of its queues, so nothing that the program does to its mappings later
//! disturbs the card. The software card uses the program's own mappings: an access may raise SIGSEGV or SIGBUS. A
//! handler of these signals ends such an access, if it is the card's, with an error; all other faults are passed to the
//! handlers that were installed before. A program that installs a handler after it has opened a card gets the card's
//! faults, too.

use super::watch;
use parking_lot::Once;
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An access has met memory that is not mapped, or not with the right access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// A thread that accesses programs' memory. A cache line of its own.
#[repr(align(64))]
struct Guard {
    /// The thread's pointer ([`thread_pointer`]); 0 if the entry is free.
    thread: AtomicUsize,
    /// The stack pointer to which its access returns; 0 outside an access.
    stack: AtomicUsize,
}

/// Maximum number of threads at the same time. A further thread works without a guard.
const MOST: usize = 512;

static GUARDS: [Guard; MOST] =
    [const { Guard { thread: AtomicUsize::new(0), stack: AtomicUsize::new(0) } }; MOST];

/// A thread's entry, until the thread ends.
struct Own(Option<&'static Guard>);

thread_local! {
    static OWN: Own = {
        let thread = thread_pointer();
        let is_taken =
            |guard: &&Guard| guard.thread.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Own(GUARDS.iter().find(is_taken))
    };
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.inspect(|guard| guard.thread.store(0, Ordering::Relaxed));
    }
}

/// Takes the calling thread's entry, whose release at the thread's end is registered in memory of the C library. A thread
/// that does that later may meet a library that patches the C library's memory functions ([`gdsync_sys::thread`]).
pub(crate) fn prepare() {
    OWN.with(|_| ());
}

/// Runs `access`. Returns an error if it meets memory that it cannot access; it is then abandoned where it stood, and
/// its effects up to there remain.
///
/// `access` and the functions that it calls must own nothing when they access memory: no destructor runs for what an
/// abandoned access owns. Accesses do not nest.
#[inline]
pub(crate) fn guarded<F: FnMut()>(mut access: F) -> Result<(), Fault> {
    unsafe extern "C" fn run<F: FnMut()>(access: *mut ()) {
        // SAFETY: `guarded` passes its closure, which nothing else uses meanwhile.
        unsafe { (*access.cast::<F>())() }
    }
    let Some(guard) = OWN.try_with(|own| own.0).unwrap_or(None) else {
        access();
        return Ok(());
    };
    // SAFETY: the function returns to this frame, once: by itself, or because the handler has found `stack`. The frames
    // that the handler skips own nothing.
    let faulted = unsafe { call(guard.stack.as_ptr(), run::<F>, (&raw mut access).cast()) };
    guard.stack.store(0, Ordering::Relaxed);
    if faulted == 0 { Ok(()) } else { Err(Fault) }
}

/// Returns a number that no other living thread has, without a call: a handler of signals may do that.
#[inline(always)]
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads the thread pointer, to which the first word of its structure points on x86-64.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// Stores the stack pointer to `stack`, calls `access` and returns 0. If the handler continues the thread at
/// [`resume`] with that stack pointer, returns 1 instead.
///
/// # Safety
/// `stack` is writable, and `access` accepts the argument.
#[unsafe(naked)]
unsafe extern "C" fn call(
    stack: *mut usize,
    access: unsafe extern "C" fn(*mut ()),
    argument: *mut (),
) -> usize {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        "xor eax, eax",
        "jmp {leave}",
        leave = sym leave,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -160]!",
        "stp x19, x20, [sp, 16]",
        "stp x21, x22, [sp, 32]",
        "stp x23, x24, [sp, 48]",
        "stp x25, x26, [sp, 64]",
        "stp x27, x28, [sp, 80]",
        "stp d8, d9, [sp, 96]",
        "stp d10, d11, [sp, 112]",
        "stp d12, d13, [sp, 128]",
        "stp d14, d15, [sp, 144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov x0, x2",
        "blr x1",
        "mov x0, 0",
        "b {leave}",
        leave = sym leave,
    );
}

/// Where a thread continues whose access has failed. The stack pointer is that of its guard.
#[unsafe(naked)]
unsafe extern "C" fn resume() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov eax, 1", "jmp {leave}", leave = sym leave);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x0, 1", "b {leave}", leave = sym leave);
}

/// The end of [`call`].
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret"
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "ldp x19, x20, [sp, 16]",
        "ldp x21, x22, [sp, 32]",
        "ldp x23, x24, [sp, 48]",
        "ldp x25, x26, [sp, 64]",
        "ldp x27, x28, [sp, 80]",
        "ldp d8, d9, [sp, 96]",
        "ldp d10, d11, [sp, 112]",
        "ldp d12, d13, [sp, 128]",
        "ldp d14, d15, [sp, 144]",
        "ldp x29, x30, [sp], 160",
        "ret",
    );
}

/// What was installed before, by the index of [`SIGNALS`].
struct Former([UnsafeCell<MaybeUninit<libc::sigaction>>; 2]);

// SAFETY: written before the handler that reads it is installed, and never again.
unsafe impl Sync for Former {}

/// Code of a fault at a page that is mapped without the right (sigaction(2)).
const SEGV_ACCERR: libc::c_int = 2;
const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

static FORMER: Former = Former([const { UnsafeCell::new(MaybeUninit::uninit()) }; 2]);

/// Installs the handler, once in a process. Every card calls it before it accesses a program's memory.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = install_handlers() {
            tracing::warn!(%error, "memory that a program unmaps while it is registered will end the program");
        }
    });
}

fn install_handlers() -> io::Result<()> {
    for (signal, former) in SIGNALS.into_iter().zip(&FORMER.0) {
        // SAFETY: an all-zero `sigaction` is valid; the handler has the signature that SA_SIGINFO asks for, and what it
        // reads is written first.
        unsafe {
            super::check(libc::sigaction(signal, std::ptr::null(), former.get().cast()))?;
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            super::check(libc::sigaction(signal, &raw const action, std::ptr::null_mut()))?;
        }
    }
    // Other threads do not exist in a child, whose threads may get their pointers.
    // SAFETY: the function only loads and stores atomics.
    unsafe { libc::pthread_atfork(None, None, Some(clear_guards)) };
    Ok(())
}

unsafe extern "C" fn clear_guards() {
    let others = GUARDS.iter().filter(|guard| guard.thread.load(Ordering::Relaxed) != thread_pointer());
    others.for_each(|guard| guard.thread.store(0, Ordering::Relaxed));
}

/// Handles a fault: abandons the access of the thread's guard, or passes the signal on.
unsafe extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let thread = thread_pointer();
    // The thread itself has taken its guard, so it sees it.
    let guard = GUARDS.iter().find(|guard| guard.thread.load(Ordering::Relaxed) == thread);
    let stack = guard.map_or(0, |guard| guard.stack.load(Ordering::Relaxed));
    // SAFETY: the kernel passes the description of the signal and the thread's registers; a positive code is a fault of
    // the thread, and not a signal that a process has sent.
    unsafe {
        if stack != 0 && (*info).si_code > 0 {
            continue_at_resume(&mut *context.cast(), stack);
        } else if signal == libc::SIGSEGV
            && (*info).si_code == SEGV_ACCERR
            && watch::on_fault((*info).si_addr() as usize, code_of(&*context.cast()))
        {
            // The access is repeated.
        } else {
            pass_on(signal, info, context);
        }
    }
}

/// Returns the address of the instruction that has faulted.
fn code_of(context: &libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc as usize;
}

fn continue_at_resume(context: &mut libc::ucontext_t, stack: usize) {
    let at = resume as *const () as usize;
    #[cfg(target_arch = "x86_64")]
    {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = at as i64;
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.uc_mcontext.pc = at as u64;
        context.uc_mcontext.sp = stack as u64;
    }
}

/// Does what would have happened without this module.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let index = usize::from(signal == SIGNALS[1]);
    // SAFETY: written before the handler was installed; a handler has the signature that its flags tell.
    unsafe {
        let former = (*FORMER.0[index].get()).assume_init_ref();
        match former.sa_sigaction {
            libc::SIG_IGN if (*info).si_code <= 0 => {}
            // A fault comes again when the instruction is repeated, and ends the process as it would have. A signal that
            // a process has sent does not, and is raised.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, former, std::ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
            handler if former.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_to_nothing_ends_with_an_error_and_others_go_on() {
        install();
        let mut threads = Vec::new();
        for thread in 1..=8usize {
            threads.push(std::thread::spawn(move || {
                for round in 0..1000 {
                    // The first page is never mapped.
                    let at = (thread * 8) as *const u64;
                    // SAFETY: the access faults, and the handler ends it.
                    let bad = guarded(|| unsafe { _ = at.read_volatile() });
                    assert_eq!(bad, Err(Fault));
                    let (from, mut to) = (thread + round, 0);
                    assert_eq!(guarded(|| to = from), Ok(()));
                    assert_eq!(to, from);
                    let is_own = |guard: &&Guard| guard.thread.load(Ordering::Relaxed) == thread_pointer();
                    assert_eq!(GUARDS.iter().filter(is_own).count(), 1);
                }
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
