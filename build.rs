//! Builds what the command embeds: the PTX of the kernels of `gdsync pingpong`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR")?);
    ptx(&out)
}

fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}, which cargo sets for build scripts: {error}").into())
}

const KERNELS: &str = "kernels/pingpong.cu";
const COMMITTED: &str = "kernels/ptx/pingpong.ptx";

/// Writes the PTX of the kernels of `gdsync pingpong` to `OUT_DIR/ptx`, from where the command includes it.
///
/// This is the committed PTX as long as it matches its source. `scripts/gpu/ptx` makes it with the compiler of CUDA
/// 12.0, so every driver since then accepts it, and a command built anywhere carries the same PTX; PTX of a later
/// compiler is refused by older drivers. If the committed PTX is stale and nvcc is found, nvcc's output is used
/// instead, so that a changed kernel can be tried at once.
fn ptx(out: &Path) -> Result<(), Failure> {
    println!("cargo::rerun-if-changed={KERNELS}");
    println!("cargo::rerun-if-changed={COMMITTED}");
    println!("cargo::rerun-if-env-changed=NVCC");
    let folder = out.join("ptx");
    fs::create_dir_all(&folder)?;
    let (committed, embedded) = (read(COMMITTED)?, folder.join("pingpong.ptx"));
    if committed.lines().next() != Some(&first_line(&read(KERNELS)?)) {
        let is_made = Nvcc::find()?.is_some_and(|nvcc| nvcc.compile(KERNELS, &embedded));
        let instead = if is_made { ". Embedded instead: nvcc's" } else { "" };
        println!(
            "cargo::warning={COMMITTED} is stale, as {KERNELS} has changed: run scripts/gpu/ptx{instead}"
        );
        if is_made {
            return Ok(());
        }
    }
    Ok(fs::write(embedded, committed)?)
}

/// Returns the first line of a source's PTX: the source's hash (FNV-1a), as `scripts/gpu/ptx` writes it.
fn first_line(source: &str) -> String {
    let hash = source
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("// source: {hash:016x}")
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}").into())
}

struct Nvcc(String);

impl Nvcc {
    /// Returns the compiler that the variable NVCC names, or else the one on the PATH, if any.
    fn find() -> Result<Option<Self>, Failure> {
        let named = env::var("NVCC").ok().filter(|name| !name.is_empty());
        let name = named.clone().unwrap_or_else(|| "nvcc".to_owned());
        match Command::new(&name).arg("--version").output() {
            Ok(_) => Ok(Some(Nvcc(name))),
            Err(_) if named.is_none() => Ok(None),
            Err(error) => {
                Err(format!("NVCC is {name}, which does not start: {error}; unset it, or set it to nvcc")
                    .into())
            }
        }
    }

    /// Returns whether the source compiles. If not, a warning says why: a toolkit may not support the oldest GPU any
    /// more, as CUDA 13 does not; then the committed PTX is used.
    fn compile(&self, source: &str, to: &Path) -> bool {
        let mut command = Command::new(&self.0);
        command.args(["--ptx", "--gpu-architecture=compute_70"]);
        let why = match command.arg("-o").arg(to).arg(source).output() {
            Ok(output) if output.status.success() => return true,
            Ok(output) => [output.stderr, output.stdout].concat(),
            Err(error) => error.to_string().into_bytes(),
        };
        let why = String::from_utf8_lossy(&why);
        let why = why.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        println!("cargo::warning={} does not compile {source}: {why}", self.0);
        false
    }
}
