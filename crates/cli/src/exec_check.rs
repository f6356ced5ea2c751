//! Looks at the command of `listen --exec` before the first callback is taken for it.
//!
//! Invariant: only a command that cannot run is refused: a line that the shell cannot read, or one
//! whose first word is neither a program nor anything of the shell's.

#[cfg(unix)]
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};

use super::exit::Failure;

/// Refuses a command that every callback would fail with.
#[cfg(unix)]
pub(crate) fn check(line: &str) -> Result<(), Failure> {
    let wrong = |why: String| Failure::usage(format!("--exec {line:?}: {why}"));
    let shell = |args: &[&str]| Command::new("/bin/sh").args(args).stdin(Stdio::null()).output();
    let read = shell(&["-n", "-c", line]).map_err(|e| wrong(format!("/bin/sh cannot be started: {e}")))?;
    if !read.status.success() {
        let why = String::from_utf8_lossy(&read.stderr).trim().to_owned();
        return Err(wrong(format!("/bin/sh cannot read it: {why}")));
    }
    let Some(program) = program(line) else { return Ok(()) };
    if program.contains('/') {
        let path = Path::new(program);
        return match path.metadata() {
            Err(error) => Err(wrong(format!("{program} cannot be run: {error}"))),
            Ok(found) if !found.is_file() => Err(wrong(format!("{program} is no program, but a folder"))),
            Ok(_) => rustix::fs::access(path, rustix::fs::Access::EXEC_OK)
                .map_err(|error| wrong(format!("{program} cannot be run: {error}; try chmod +x {program}"))),
        };
    }
    match shell(&["-c", "command -v -- \"$0\"", program]) {
        Ok(found) if !found.status.success() => {
            Err(wrong(format!("there is no program {program}: give its path, or install it")))
        }
        // A shell that cannot say it is no reason to refuse.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(not(unix))]
pub(crate) fn check(_line: &str) -> Result<(), Failure> {
    Ok(())
}

/// The first word, if it is plain: the shell does not change it.
#[cfg(unix)]
fn program(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./+,@%".contains(c);
    // With another character behind it, such as `;`, it is not the whole word.
    word.chars().all(is_plain).then_some(word)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_cannot_run_is_refused() {
        for good in [
            "exit 0",
            "cat > /dev/null",
            "A=1 /no/such",
            "if true; then :; fi",
            "/bin/sh -c true",
            "\"$HOME\"/x",
            "true",
        ] {
            check(good).unwrap();
        }
        for (bad, part) in [
            ("/no/such/program x", "/no/such/program cannot be run: No such file"),
            ("no-such-program-here", "there is no program no-such-program-here"),
            ("/tmp", "/tmp is no program, but a folder"),
            ("if true", "/bin/sh cannot read it"),
            ("echo 'x", "/bin/sh cannot read it"),
        ] {
            let failure = check(bad).unwrap_err();
            assert!(
                failure.message.contains(part) && failure.exit == crate::exit::Exit::Usage,
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handler");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        let line = path.display().to_string();
        assert!(check(&line).unwrap_err().message.contains("chmod +x"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        check(&line).unwrap();
    }
}
