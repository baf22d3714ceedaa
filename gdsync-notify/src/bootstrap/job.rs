//! The process's rank in its job, from the launcher's environment.

use super::error::BootstrapError;
use gdsync_auth::{Key, KeyVariables};
use gdsync_sys::launcher::{LAUNCHERS, Launcher, TORCHRUN};
use std::ffi::OsString;

/// Environment variables with the key that processes prove at `GDSYNC_ROOT`: the key itself, or its file's path.
pub const KEY_VARIABLES: KeyVariables = KeyVariables { key: "GDSYNC_KEY", file: "GDSYNC_KEY_FILE" };

const MAX_SIZE: u32 = 1 << 14;

/// Where the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// At `host:port`, where rank 0 listens.
    Root(String),
    /// On this host, in a folder that only this user can reach, under the job's name.
    Local(String),
}

/// A process of a job: its rank, the number of processes, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    rank: u32,
    size: u32,
    rendezvous: Rendezvous,
    name: String,
    key: Option<Key>,
}

/// Variables with a launcher's number of hosts.
const HOSTS: [&str; 2] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
/// Variables with the number of processes on this host.
const ON_THIS_HOST: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

impl Job {
    /// Describes a process of a job without a launcher.
    ///
    /// # Errors
    /// [`BootstrapError::Rank`] if the rank is not below the size, or the size above 16384.
    pub fn new(rank: u32, size: u32, rendezvous: Rendezvous) -> Result<Self, BootstrapError> {
        let name = match &rendezvous {
            Rendezvous::Root(_) => String::new(),
            Rendezvous::Local(name) => name.clone(),
        };
        Self::named(rank, size, rendezvous, name)
    }

    fn named(rank: u32, size: u32, rendezvous: Rendezvous, name: String) -> Result<Self, BootstrapError> {
        if rank >= size || size > MAX_SIZE {
            return Err(BootstrapError::Rank { rank, size, limit: MAX_SIZE });
        }
        Ok(Job { rank, size, rendezvous, name, key: None })
    }

    /// Reads the launcher's description: rank and size from `GDSYNC_RANK` and `GDSYNC_SIZE`, or the variables of Open
    /// MPI (`OMPI_COMM_WORLD_RANK`, `_SIZE`), PMIx (`PMIX_RANK`), PMI (`PMI_RANK`, `PMI_SIZE`; MPICH, Intel MPI), Slurm
    /// (`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`) or torchrun (`RANK`, `WORLD_SIZE`).
    ///
    /// The processes meet at `GDSYNC_ROOT=host:port`, where rank 0 listens, and prove the key of [`KEY_VARIABLES`]
    /// there. On one host they need neither: they meet under the job's name, from `GDSYNC_JOB` or from the launcher.
    /// For torchrun the name is its run, `MASTER_ADDR` and `MASTER_PORT`; if it has started processes on other hosts,
    /// they meet at the port after `MASTER_PORT`, at which torch listens.
    ///
    /// # Errors
    /// [`BootstrapError::NoLauncher`], [`BootstrapError::NoSize`], [`BootstrapError::Variable`], [`BootstrapError::Rank`],
    /// [`BootstrapError::Key`]; [`BootstrapError::SeveralHosts`] and [`BootstrapError::NoJobName`] without `GDSYNC_ROOT`.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// As [`Self::from_env`], from the caller's environment.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_lookup(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, BootstrapError> {
        let launcher = LAUNCHERS.into_iter().find_map(|launcher| Some((launcher, get(launcher.rank)?)));
        let (Launcher { rank: rank_name, sizes }, rank) = launcher.ok_or(BootstrapError::NoLauncher)?;
        let rank = number(rank_name, &rank)?;
        let size = sizes.iter().find_map(|name| Some((*name, get(name)?)));
        let (size_name, size) = size.ok_or(BootstrapError::NoSize { rank: rank_name, size: sizes[0] })?;
        let size = number(size_name, &size)?;
        let name = if rank_name == TORCHRUN { torchrun_name(&get) } else { job_name(&get) };
        let rendezvous = match get("GDSYNC_ROOT") {
            Some(root) => Rendezvous::Root(checked_root(root)?),
            None if rank_name == TORCHRUN && size > 1 && is_on_several_hosts(size, &get)? => {
                torchrun_root(&get)?
            }
            None => {
                on_one_host(rank_name, size, &get)?;
                if name.is_none() && size > 1 {
                    return Err(BootstrapError::NoJobName);
                }
                Rendezvous::Local(name.clone().unwrap_or_default())
            }
        };
        let key = KEY_VARIABLES.read(&get)?;
        Ok(Job { key, ..Self::named(rank, size, rendezvous, name.unwrap_or_default())? })
    }

    /// Sets the key that processes prove to each other at [`Rendezvous::Root`]. Without one they need an address that
    /// only this host reaches, and use their user's key.
    #[must_use]
    pub fn with_key(self, key: Key) -> Self {
        Job { key: Some(key), ..self }
    }

    /// The rank, counted from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The meeting point.
    pub fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    pub(super) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Identifies the job: FNV-1a of its name.
    pub(super) fn name_hash(&self) -> u64 {
        self.name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

fn text(name: &'static str, value: OsString) -> Result<String, BootstrapError> {
    value.into_string().map_err(|value| BootstrapError::Variable {
        name,
        value: value.to_string_lossy().into_owned(),
        reason: "it is not UTF-8".to_owned(),
    })
}

fn number(name: &'static str, value: &OsString) -> Result<u32, BootstrapError> {
    let value = text(name, value.clone())?;
    // Digits only: `parse` accepts a plus sign.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| BootstrapError::Variable {
        name,
        value,
        reason: "it should be a decimal number".to_owned(),
    })
}

fn checked_root(root: OsString) -> Result<String, BootstrapError> {
    let root = text("GDSYNC_ROOT", root)?;
    let parts = root.rsplit_once(':');
    let port = parts.and_then(|(host, port)| Some(port.parse::<u16>().ok()?).filter(|_| !host.is_empty()));
    if port.is_some_and(|port| port != 0) {
        return Ok(root);
    }
    let reason =
        "it should be host:port of rank 0, with a port that is free there, such as node7:18515".to_owned();
    Err(BootstrapError::Variable { name: "GDSYNC_ROOT", value: root, reason })
}

fn job_name(get: &impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let value =
        |name: &str| Some(get(name)?.to_string_lossy().into_owned()).filter(|value| !value.is_empty());
    let slurm = || Some(format!("{}.{}", value("SLURM_JOB_ID")?, value("SLURM_STEP_ID")?));
    value("GDSYNC_JOB")
        .or_else(|| value("PMIX_NAMESPACE"))
        .or_else(|| value("OMPI_MCA_ess_base_jobid"))
        .or_else(slurm)
        .or_else(|| value("PMI_JOBID"))
}

/// Returns the name of a torchrun run; a restart has another.
fn torchrun_name(get: &impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let value = |name: &str| get(name).map(|value| value.to_string_lossy().into_owned());
    value("GDSYNC_JOB").filter(|name| !name.is_empty()).or_else(|| {
        let (address, port) = (value("MASTER_ADDR")?, value("MASTER_PORT")?);
        let of_run = |name| value(name).unwrap_or_default();
        let (run, restart) = (of_run("TORCHELASTIC_RUN_ID"), of_run("TORCHELASTIC_RESTART_COUNT"));
        Some(format!("torchrun {address} {port} {run} {restart}"))
    })
}

/// Returns true if torchrun has started processes on other hosts, according to its count of local ones. Programs that
/// set the variables themselves may omit that; then a loopback address means one host.
fn is_on_several_hosts(size: u32, get: &impl Fn(&str) -> Option<OsString>) -> Result<bool, BootstrapError> {
    const HERE: &str = "LOCAL_WORLD_SIZE";
    match (get(HERE), get("MASTER_ADDR")) {
        (Some(here), _) => Ok(number(HERE, &here)? != size),
        (None, Some(address)) => {
            let address = address.to_string_lossy();
            Ok(!(address == "localhost" || address == "::1" || address.starts_with("127.")))
        }
        (None, None) => Ok(false),
    }
}

/// Returns rank 0's host and the port after torch's own.
fn torchrun_root(get: &impl Fn(&str) -> Option<OsString>) -> Result<Rendezvous, BootstrapError> {
    let (Some(address), Some(port)) = (get("MASTER_ADDR"), get("MASTER_PORT")) else {
        return Err(BootstrapError::NoJobName);
    };
    let (address, port) = (text("MASTER_ADDR", address)?, number("MASTER_PORT", &port)?);
    match u16::try_from(port).ok().and_then(|port| port.checked_add(1)) {
        Some(port) => Ok(Rendezvous::Root(format!("{address}:{port}"))),
        None => Err(BootstrapError::Variable {
            name: "MASTER_PORT",
            value: port.to_string(),
            reason:
                "it should be a port below 65535: ranks meet at the next one, unless GDSYNC_ROOT says where"
                    .to_owned(),
        }),
    }
}

/// Refuses to meet on this host if the launcher, but not `GDSYNC_RANK`, has placed processes on others.
fn on_one_host(rank: &str, size: u32, get: &impl Fn(&str) -> Option<OsString>) -> Result<(), BootstrapError> {
    if rank == "GDSYNC_RANK" {
        return Ok(());
    }
    let elsewhere = |name: &'static str, holds: &dyn Fn(u32) -> bool| match get(name) {
        Some(value) if !holds(number(name, &value)?) => {
            Err(BootstrapError::SeveralHosts { name, value: value.to_string_lossy().into_owned() })
        }
        _ => Ok(()),
    };
    ON_THIS_HOST.into_iter().try_for_each(|name| elsewhere(name, &|here| here == size))?;
    match HOSTS.into_iter().find(|name| get(name).is_some()) {
        Some(name) if rank.starts_with("SLURM") || rank.starts_with("PMI") => {
            elsewhere(name, &|hosts| hosts == 1)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
