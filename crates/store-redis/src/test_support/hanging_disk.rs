//! A disk on which fsync hangs for as long as a test wants.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// Whether fsync hangs: a file that exists, or not.
const HANGS: &str = "MTIMER_TEST_FSYNC_HANGS";
/// Takes the place of the C library's fsync and fdatasync.
const LIBRARY: &str = r#"
    use std::os::raw::{c_char, c_int, c_void};
    extern "C" { fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void; }
    fn late(name: &'static [u8], fd: c_int) -> c_int {
        let hangs = || std::env::var_os("MTIMER_TEST_FSYNC_HANGS").map_or(false, |f| std::path::Path::new(&f).exists());
        while hangs() { std::thread::sleep(std::time::Duration::from_millis(10)); }
        let next = -1isize as *mut c_void;
        let real = unsafe { dlsym(next, name.as_ptr() as *const c_char) };
        let real: extern "C" fn(c_int) -> c_int = unsafe { std::mem::transmute(real) };
        real(fd)
    }
    #[no_mangle] pub extern "C" fn fdatasync(fd: c_int) -> c_int { late(b"fdatasync\0", fd) }
    #[no_mangle] pub extern "C" fn fsync(fd: c_int) -> c_int { late(b"fsync\0", fd) }
"#;

/// See the module. Of servers that are started with [`HangingDisk::env`].
#[derive(Debug)]
pub struct HangingDisk(TempDir);

impl HangingDisk {
    /// A disk that does not hang yet.
    pub fn new() -> Self {
        let this =
            Self(tempfile::Builder::new().prefix("mtimer-disk-").tempdir().expect("a temporary folder"));
        std::fs::write(this.path("disk.rs"), LIBRARY).expect("the source is written");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let compiled = Command::new(rustc)
            .args(["--crate-type", "cdylib", "-o"])
            .args([this.path("disk.so"), this.path("disk.rs")])
            .status()
            .expect("rustc is installed");
        assert!(compiled.success(), "rustc: {compiled}");
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The variables that a server's environment needs.
    pub fn env(&self) -> Vec<(String, String)> {
        let text = |name: &str| self.path(name).display().to_string();
        vec![("LD_PRELOAD".to_owned(), text("disk.so")), (HANGS.to_owned(), text("hangs"))]
    }

    /// Every fsync hangs from now on.
    pub fn hang(&self) {
        std::fs::write(self.path("hangs"), "").expect("the file is written");
    }

    /// Lets all of them go on.
    pub fn go_on(&self) {
        std::fs::remove_file(self.path("hangs")).expect("it hangs");
    }
}

impl Default for HangingDisk {
    fn default() -> Self {
        Self::new()
    }
}
