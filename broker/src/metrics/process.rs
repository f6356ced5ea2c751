//! The operating system's figures of this process.

use std::time::{SystemTime, UNIX_EPOCH};

/// Figures of the process; those that the system does not tell are `None`.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
    pub(super) started_seconds: f64,
}

/// Reads the figures. `started`: when the broker was started.
pub(super) fn read(started: SystemTime) -> Process {
    let started_seconds = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Process { started_seconds, ..system() }
}

#[cfg(target_os = "linux")]
fn system() -> Process {
    use rustix::process::{Resource, getrlimit};
    use rustix::time::{ClockId, clock_gettime};

    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let statm = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = statm.and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    Process {
        cpu_seconds: Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
        resident_bytes: resident.map(|pages| pages * rustix::param::page_size() as u64),
        open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
        max_fds: getrlimit(Resource::Nofile).current,
        ..Process::default()
    }
}

#[cfg(not(target_os = "linux"))]
fn system() -> Process {
    Process::default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_figures() {
        let process = read(SystemTime::now());
        assert!(process.cpu_seconds.is_some_and(|s| s > 0.0), "{process:?}");
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{process:?}");
        assert!(process.open_fds.is_some_and(|n| n >= 3), "{process:?}");
        assert!(process.max_fds >= process.open_fds, "{process:?}");
        assert!(process.started_seconds > 1e9, "{process:?}");
    }
}
