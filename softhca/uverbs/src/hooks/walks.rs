//! Directory walks, for which the C library makes calls that no hook sees: a walk of device files goes
//! through the private folder, and the program sees the paths that it has named.

use super::next::{self, Position, Unreadable, Visit, VisitAt};
use crate::paths;
use libc::{c_char, c_int};
use std::cell::Cell;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

/// Characters with a special meaning in a pattern.
const MAGIC: &[u8] = b"*?[]{}~\\";

type Glob = unsafe fn(*const c_char, c_int, Unreadable, *mut libc::glob_t) -> c_int;

/// Removes the private folder from the start of a path.
///
/// # Safety
/// A C string that no other thread reads or writes.
unsafe fn shorten(path: *mut c_char) {
    // SAFETY: guaranteed by the caller.
    let whole = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let len = whole.len();
    let public = paths::public(&whole[..len - 1]).len();
    // SAFETY: both are parts of the string.
    unsafe { std::ptr::copy(path.add(len - 1 - public), path, public + 1) };
}

/// # Safety
/// As `glob(3)`.
unsafe fn glob_any(
    pattern: *const c_char,
    flags: c_int,
    unreadable: Unreadable,
    found: *mut libc::glob_t,
    glob: Glob,
) -> c_int {
    // SAFETY: the caller vouches for `pattern`.
    let private = unsafe { paths::private(pattern) };
    // A folder whose own name is a pattern cannot be part of one.
    let is_plain =
        |folder: &std::path::Path| !folder.as_os_str().as_bytes().iter().any(|byte| MAGIC.contains(byte));
    let Some(private) = private.filter(|_| paths::folder().is_some_and(is_plain)) else {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { glob(pattern, flags, unreadable, found) };
    };
    // SAFETY: as above; the pattern is a C string.
    let result = unsafe { glob(private.as_ptr(), flags, unreadable, found) };
    if result != 0 {
        return result;
    }
    // SAFETY: the C library has filled the structure: so many strings after the places that the caller has
    // kept free, each allocated separately.
    unsafe {
        let kept = if flags & libc::GLOB_DOOFFS != 0 { (*found).gl_offs } else { 0 };
        (0..(*found).gl_pathc).for_each(|index| shorten(*(*found).gl_pathv.add(kept + index)));
    }
    result
}

/// The program's function for a walk through the private folder.
#[derive(Clone, Copy)]
enum Visitor {
    Plain(Visit),
    At(VisitAt),
}

thread_local! {
    /// The function of this thread's walk, and the number of bytes before the paths that the program should see.
    static WALK: Cell<Option<(Visitor, usize)>> = const { Cell::new(None) };
}

/// Calls the program's function for a file.
///
/// # Safety
/// As a function of `nftw(3)`; without a position, as one of `ftw(3)`.
unsafe fn visit(
    path: *const c_char,
    facts: *const libc::stat,
    kind: c_int,
    position: Option<Position>,
) -> c_int {
    let Some((visitor, lead)) = WALK.get() else { return -1 };
    // SAFETY: every path of the walk begins with the folder's; the functions are the program's.
    unsafe {
        match (visitor, position) {
            (Visitor::Plain(function), _) => function(path.add(lead), facts, kind),
            (Visitor::At(function), Some(Position { base, level })) => {
                function(path.add(lead), facts, kind, &mut Position { base: base - lead as c_int, level })
            }
            (Visitor::At(_), None) => -1,
        }
    }
}

unsafe extern "C" fn visit_plain(path: *const c_char, facts: *const libc::stat, kind: c_int) -> c_int {
    // SAFETY: the C library's arguments.
    unsafe { visit(path, facts, kind, None) }
}

unsafe extern "C" fn visit_at(
    path: *const c_char,
    facts: *const libc::stat,
    kind: c_int,
    position: *mut Position,
) -> c_int {
    // SAFETY: the C library's arguments, with a position.
    unsafe { visit(path, facts, kind, Some(*position)) }
}

/// Walks below a path, with the program's function or with a wrapper that translates the paths.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn walk(
    path: *const c_char,
    visitor: Visitor,
    walk: impl FnOnce(*const c_char, bool) -> c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(private) = (unsafe { paths::private(path) }) else { return walk(path, false) };
    let lead = paths::folder().map_or(0, |folder| folder.as_os_str().len());
    let before = WALK.replace(Some((visitor, lead)));
    let result = walk(private.as_ptr(), true);
    WALK.set(before);
    result
}

type Ftw = unsafe fn(*const c_char, Visit, c_int) -> c_int;
type Nftw = unsafe fn(*const c_char, VisitAt, c_int, c_int) -> c_int;

/// # Safety
/// As `ftw(3)`.
unsafe fn ftw_any(path: *const c_char, function: Visit, files: c_int, ftw: Ftw) -> c_int {
    let perform = |path, is_private| {
        // SAFETY: the caller vouches for the arguments.
        unsafe { ftw(path, if is_private { visit_plain } else { function }, files) }
    };
    // SAFETY: as above.
    unsafe { walk(path, Visitor::Plain(function), perform) }
}

/// # Safety
/// As `nftw(3)`.
unsafe fn nftw_any(path: *const c_char, function: VisitAt, files: c_int, flags: c_int, nftw: Nftw) -> c_int {
    let perform = |path, is_private| {
        // SAFETY: the caller vouches for the arguments.
        unsafe { nftw(path, if is_private { visit_at } else { function }, files, flags) }
    };
    // SAFETY: as above.
    unsafe { walk(path, Visitor::At(function), perform) }
}

c_functions! {
    glob(pattern: *const c_char, flags: c_int, unreadable: Unreadable, found: *mut libc::glob_t) -> c_int {
        glob_any(pattern, flags, unreadable, found, next::glob)
    }

    glob64(pattern: *const c_char, flags: c_int, unreadable: Unreadable, found: *mut libc::glob_t) -> c_int {
        glob_any(pattern, flags, unreadable, found, next::glob64)
    }

    ftw(path: *const c_char, visit: Visit, files: c_int) -> c_int {
        ftw_any(path, visit, files, next::ftw)
    }

    ftw64(path: *const c_char, visit: Visit, files: c_int) -> c_int {
        ftw_any(path, visit, files, next::ftw64)
    }

    nftw(path: *const c_char, visit: VisitAt, files: c_int, flags: c_int) -> c_int {
        nftw_any(path, visit, files, flags, next::nftw)
    }

    nftw64(path: *const c_char, visit: VisitAt, files: c_int, flags: c_int) -> c_int {
        nftw_any(path, visit, files, flags, next::nftw64)
    }
}
