//! Names of code addresses of this process.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

/// A place in the code: the file, and the function and the offset there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    file: String,
    /// Offset in the file as it is loaded, as tools like addr2line take it.
    offset: u64,
    function: Option<(String, u64)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { file, offset, function } = self;
        if let Some((name, inside)) = function {
            write!(f, "{name}+{inside:#x} in ")?;
        }
        write!(f, "{file}+{offset:#x}")
    }
}

/// Names an address. `None` if no file is loaded there.
pub(crate) fn place_of(code: usize) -> Option<Place> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address, and fills the structure if it returns other than 0. The strings are the loader's, and stay
    // as long as the file is loaded: the code there runs.
    let (info, file) = unsafe {
        if libc::dladdr(code as *const libc::c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        let info = info.assume_init();
        (info, CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
    };
    let base = info.dli_fbase as usize;
    let exported = (!info.dli_sname.is_null()).then(|| {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned();
        (name, (code - info.dli_saddr as usize) as u64)
    });
    let offset = (code - base) as u64;
    // The name of the main program is relative to the folder in which it was started.
    let path = if Path::new(&file).is_file() { file.as_str() } else { "/proc/self/exe" };
    let function = exported.or_else(|| local_function(&fs::read(path).ok()?, offset, code as u64));
    Some(Place { file, offset, function })
}

/// Finds the function of an ELF file with its own symbols, which include those that are not exported. `offset` is the place
/// in a file that is loaded anywhere, `code` in one with fixed addresses.
fn local_function(file: &[u8], offset: u64, code: u64) -> Option<(String, u64)> {
    /// `ET_EXEC`: fixed addresses.
    const FIXED: u16 = 2;
    /// `SHT_SYMTAB`, and the bytes of a section's header and of a symbol.
    const SYMBOLS: u32 = 2;
    const SECTION: usize = 64;
    const SYMBOL: usize = 24;
    /// `STT_FUNC`.
    const FUNCTION: u8 = 2;
    file.strip_prefix(b"\x7fELF\x02\x01")?;
    let wanted = if short(file, 16)? == FIXED { code } else { offset };
    let section = |index: usize| {
        let start = usize::try_from(long(file, 40)?).ok()?.checked_add(index.checked_mul(SECTION)?)?;
        file.get(start..start.checked_add(SECTION)?)
    };
    let content = |header: &[u8]| {
        let (start, len) =
            (usize::try_from(long(header, 24)?).ok()?, usize::try_from(long(header, 32)?).ok()?);
        file.get(start..start.checked_add(len)?)
    };
    let headers = (0..usize::from(short(file, 60)?)).filter_map(section);
    let table = headers.into_iter().find(|header| header.get(4..8) == Some(&SYMBOLS.to_le_bytes()))?;
    let names = content(section(short(table, 40)?.into())?)?;
    content(table)?.chunks_exact(SYMBOL).find_map(|symbol| {
        let (start, size) = (long(symbol, 8)?, long(symbol, 16)?);
        let is_it =
            symbol[4] & 0xf == FUNCTION && wanted.checked_sub(start).is_some_and(|inside| inside < size);
        let name = u32::from_le_bytes(*symbol.first_chunk()?) as usize;
        let name = CStr::from_bytes_until_nul(names.get(name..)?).ok()?;
        is_it.then(|| (name.to_string_lossy().into_owned(), wanted - start))
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_of_this_test() -> usize {
        std::hint::black_box(7)
    }

    #[test]
    fn functions_have_their_names_though_they_are_not_exported() {
        let code = a_function_of_this_test as *const () as usize;
        let place = place_of(code + 1).unwrap().to_string();
        assert!(place.contains("a_function_of_this_test") && place.contains("+0x1 in "), "{place}");
        assert_eq!((a_function_of_this_test(), place_of(1)), (7, None));
        assert!(place_of(libc::getpid as *const () as usize).unwrap().to_string().contains("libc"));
    }

    #[test]
    fn rubbish_has_no_functions() {
        let own = fs::read("/proc/self/exe").unwrap();
        for cut in [0, 6, 63, 64, 1000, own.len() / 2] {
            assert_eq!(local_function(&own[..cut], 0, 0), None);
        }
    }
}
