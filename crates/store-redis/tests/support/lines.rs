//! The log of a test.

use std::sync::{Arc, Mutex};

/// Lines that were logged.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Of the whole process: nextest gives each test its own.
    pub fn collect() -> Self {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        // Another test of this process may have been first, with `cargo test`.
        let _ = subscriber.try_init();
        lines
    }

    /// How many lines have this text.
    pub fn with(&self, text: &str) -> usize {
        let all = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        all.lines().filter(|line| line.contains(text)).count()
    }
}
