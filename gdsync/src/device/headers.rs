//! The device header as text, which programs that compile kernels at run time embed: nothing has to be installed.

macro_rules! headers {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/include/", $path)))),+]
    };
}

/// The files of the device header, each with its path below the include folder and its text.
///
/// `gdsync/device_verbs.cuh`, which kernels include and which includes the others, is first.
///
/// # Examples
///
/// nvcc, NVRTC and C++ compilers find the files in an include folder:
///
/// ```
/// use std::fs;
///
/// # fn main() -> std::io::Result<()> {
/// let include = std::env::temp_dir().join(format!("include-{}", std::process::id()));
/// for (path, text) in gdsync::device::headers() {
///     let path = include.join(path);
///     fs::create_dir_all(path.parent().unwrap_or(&include))?;
///     fs::write(path, text)?;
/// }
/// let option = format!("-I{}", include.display());
/// # assert!(option.starts_with("-I/") && include.join("gdsync/device/post.cuh").is_file());
/// # fs::remove_dir_all(include)
/// # }
/// ```
///
/// [`nvrtc`](super::nvrtc) hands them to NVRTC from memory.
pub fn headers() -> &'static [(&'static str, &'static str)] {
    headers![
        "gdsync/device_verbs.cuh",
        "gdsync/device/atomics.cuh",
        "gdsync/device/completion.cuh",
        "gdsync/device/crc32.cuh",
        "gdsync/device/group.cuh",
        "gdsync/device/notify.cuh",
        "gdsync/device/ops.cuh",
        "gdsync/device/platform.cuh",
        "gdsync/device/post.cuh",
        "gdsync/device/queue.cuh",
        "gdsync/device/trigger.cuh",
        "gdsync/device/wqe.cuh",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn files_in(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_file_of_the_include_folder_is_there() {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut expected = files_in(&include);
        expected.sort();
        let mut paths: Vec<PathBuf> = headers().iter().map(|(path, _)| include.join(path)).collect();
        paths.sort();
        assert_eq!(paths, expected);
        for (path, text) in headers() {
            assert_eq!(std::fs::read_to_string(include.join(path)).unwrap(), *text, "{path}");
        }
    }

    #[test]
    fn files_include_each_other_and_nothing_else_of_a_project() {
        for (path, text) in headers() {
            let folder = Path::new(path).parent().unwrap();
            let included =
                text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            for name in included {
                let named = folder.join(name);
                assert!(headers().iter().any(|(path, _)| Path::new(path) == named), "{path} includes {name}");
            }
        }
        let whole: String = headers().iter().map(|(_, text)| *text).collect();
        assert!(whole.matches("#include \"").count() > headers().len());
    }
}
