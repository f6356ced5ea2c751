//! Files with tokens and private keys: read only if nobody but the owner and the group can read
//! them.
//!
//! Group access is allowed for reading, as Kubernetes mounts secrets that way. Windows has other
//! permissions, which are not looked at.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Permissions that such a file must not have: the group's to write, and all of others.
#[cfg(unix)]
const EXPOSED: u32 = 0o027;

/// Says why a private file was not read.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The system refuses.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error("{} has mode {mode:04o}, so others can read or change it: run chmod 600 {}", .path.display(), .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Too large.
    #[error("{} has more than {limit} bytes: is it the right file?", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes.
        limit: u64,
    },
}

/// Reads a file as text.
///
/// # Errors
///
/// [`PrivateFileError`] if it cannot be read, others than its owner and group can read or change
/// it, or it has more than `limit` bytes.
pub fn read_private(path: &Path, limit: u64) -> Result<String, PrivateFileError> {
    let failed = |source| PrivateFileError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    check_private(&file, path)?;
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        return Err(PrivateFileError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(text)
}

/// Checks who can read and change an open file.
///
/// # Errors
///
/// [`PrivateFileError::Exposed`] if others than its owner and group can.
#[cfg(unix)]
pub fn check_private(file: &File, path: &Path) -> Result<(), PrivateFileError> {
    use std::os::unix::fs::PermissionsExt;
    let data = file.metadata().map_err(|source| PrivateFileError::Read { path: path.to_owned(), source })?;
    let mode = data.permissions().mode() & 0o7777;
    if data.is_file() && mode & EXPOSED != 0 {
        return Err(PrivateFileError::Exposed { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Permissions are not checked on this system.
///
/// # Errors
///
/// None.
#[cfg(not(unix))]
pub fn check_private(_file: &File, _path: &Path) -> Result<(), PrivateFileError> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_file_that_others_cannot_reach_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "text").unwrap();
        for (mode, is_read) in
            [(0o600, true), (0o400, true), (0o440, true), (0o644, false), (0o660, false), (0o602, false)]
        {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let read = read_private(&path, 4);
            assert_eq!(read.is_ok(), is_read, "{mode:o}: {read:?}");
            if let Err(error) = read {
                let text = error.to_string();
                assert!(text.contains(&format!("mode {mode:04o}")) && text.contains("chmod 600"), "{text}");
            }
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(matches!(read_private(&path, 3), Err(PrivateFileError::TooLarge { limit: 3, .. })));
        assert!(matches!(read_private(&dir.path().join("none"), 3), Err(PrivateFileError::Read { .. })));
    }
}
