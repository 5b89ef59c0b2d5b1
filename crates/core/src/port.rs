//! What the ports share.

use std::{future::Future, pin::Pin};

/// An answer that may have to come from elsewhere.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
