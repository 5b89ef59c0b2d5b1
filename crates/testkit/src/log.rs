//! What is logged, kept for a test to read.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

/// What this thread has logged since the start, at any level.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Logs until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false);
        let subscriber = subscriber.with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("UTF-8")
    }

    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(text)).map(ToOwned::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
