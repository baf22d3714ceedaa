//! Programs started by a program. The loader preloads no library into some of them; for these, stderr reports
//! that they see no card. `gdsync soft` itself reports it for its command.

use super::next;
use crate::errno::preserving;
use crate::log;
use crate::paths;
use libc::{c_char, c_int, c_long, c_void};
use softhca::program;
use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

type Strings = *const *const c_char;

/// The default of `PATH`, as in execvp(3).
const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";

/// Returns the folders of commands. (The standard library would take a lock, which may be held forever in the
/// child of a fork.)
fn search_path() -> &'static OsStr {
    // SAFETY: a C string; as for any reader of the environment, the program must not change it meanwhile.
    let value = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a value of the environment is a C string.
    let value = if value.is_null() { DEFAULT_PATH } else { unsafe { CStr::from_ptr(value) } };
    OsStr::from_bytes(value.to_bytes())
}

/// Returns whether a program was not reported in this run yet: a file in the private folder marks it for all processes.
fn is_new(program: &Path, folder: &Path) -> bool {
    let Ok(facts) = program.metadata() else { return true };
    let mark = folder.join(format!("said-{:x}-{:x}", facts.dev(), facts.ino()));
    let made = OpenOptions::new().write(true).create_new(true).open(mark);
    !made.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
}

/// Reports a program that sees no card. `is_searched`: the name is a command, not a path.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn report(name: *const c_char, is_searched: bool) {
    let Some(folder) = paths::folder().filter(|_| !name.is_null()) else { return };
    // SAFETY: guaranteed by the caller.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    preserving(|| {
        let file = if is_searched { program::find(name, search_path()) } else { Some(PathBuf::from(name)) };
        if let Some((program, obstacle)) = file.and_then(|file| program::obstacle(&file))
            && is_new(&program, folder)
        {
            log::say(&format!("no software card: {} {obstacle}", program.display()));
        }
    });
}

unsafe extern "C" {
    static environ: Strings;
}

/// # Safety
/// As `execve(2)`.
unsafe fn execute(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let result: c_long = unsafe {
        report(path, false);
        libc::syscall(libc::SYS_execve, path, arguments, environment)
    };
    result as c_int
}

/// Calls the C library's function for a program.
///
/// # Safety
/// As [`report`].
unsafe fn start(name: *const c_char, is_searched: bool, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { report(name, is_searched) };
    call()
}

c_functions! {
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        execute(path, arguments, environment)
    }

    execv(path: *const c_char, arguments: Strings) -> c_int {
        execute(path, arguments, environ)
    }

    execvp(program: *const c_char, arguments: Strings) -> c_int {
        start(program, true, || next::execvp(program, arguments))
    }

    execvpe(program: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        start(program, true, || next::execvpe(program, arguments, environment))
    }

    posix_spawn(
        pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int {
        start(path, false, || next::posix_spawn(pid, path, actions, attributes, arguments, environment))
    }

    posix_spawnp(
        pid: *mut libc::pid_t, program: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int {
        start(program, true, || next::posix_spawnp(pid, program, actions, attributes, arguments, environment))
    }
}

/// The functions with a list of arguments, which only the C library can read: the program's name is checked,
/// and then the C library's function continues with the caller's registers and stack.
#[cfg(not(any(test, fuzzing)))]
pub mod lists {
    use super::super::next::Next;
    use super::report;
    use libc::{c_char, c_int, c_void};

    unsafe extern "C" fn missing() -> c_int {
        crate::errno::Errno(libc::ENOSYS).set();
        -1
    }

    /// Defines a function, and the one called before the C library's, whose address it returns.
    macro_rules! lists {
        ($($(#[$doc:meta])+ $name:ident, $before:ident, $is_searched:expr;)+) => {
            $(
                unsafe extern "C" fn $before(name: *const c_char) -> *mut c_void {
                    static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes(),
                    ) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    });
                    // SAFETY: the program has passed a C string.
                    unsafe { report(name, $is_searched) };
                    let next = NEXT.address();
                    if next.is_null() { missing as unsafe extern "C" fn() -> c_int as *mut c_void } else { next }
                }

                $(#[$doc])+
                ///
                /// # Safety
                /// As the C function.
                #[cfg(target_arch = "x86_64")]
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name(name: *const c_char) -> c_int {
                    std::arch::naked_asm!(
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                        "call {before}",
                        "mov r11, rax",
                        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp r11",
                        before = sym $before,
                    )
                }

                $(#[$doc])+
                ///
                /// # Safety
                /// As the C function.
                #[cfg(target_arch = "aarch64")]
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name(name: *const c_char) -> c_int {
                    std::arch::naked_asm!(
                        "stp x29, x30, [sp, #-80]!",
                        "stp x0, x1, [sp, #16]",
                        "stp x2, x3, [sp, #32]",
                        "stp x4, x5, [sp, #48]",
                        "stp x6, x7, [sp, #64]",
                        "bl {before}",
                        "mov x16, x0",
                        "ldp x0, x1, [sp, #16]",
                        "ldp x2, x3, [sp, #32]",
                        "ldp x4, x5, [sp, #48]",
                        "ldp x6, x7, [sp, #64]",
                        "ldp x29, x30, [sp], #80",
                        "br x16",
                        before = sym $before,
                    )
                }
            )+
        };
    }

    lists! {
        /// `execl(3)`.
        execl, before_execl, false;
        /// `execle(3)`.
        execle, before_execle, false;
        /// `execlp(3)`.
        execlp, before_execlp, true;
    }
}
