//! What a process uses and can do without: it is shown, and is no reason to send work elsewhere.

use std::{fmt, sync::Arc};

/// Something that makes Postrider faster or more even, such as Redis.
#[derive(Clone)]
pub struct OptionalDependency {
    /// As the answers call it, such as `redis`.
    pub name: &'static str,
    /// What is different while it is away.
    pub note: &'static str,
    /// Whether it can be used now. Answers at once.
    pub is_up: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for OptionalDependency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OptionalDependency").field("name", &self.name).finish_non_exhaustive()
    }
}
