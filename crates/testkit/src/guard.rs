//! The product's guard over names that a test makes up.

use std::{fmt, future::Future, io, net::IpAddr, pin::Pin, sync::Arc};

use postrider_core::{address, destination::Origin, retry::Failure};
use postrider_engine::{
    clock::SystemClock,
    transport::{Guard, Resolver},
};

type Checking = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// What a name resolves to.
pub type Names = fn(&str) -> io::Result<Vec<IpAddr>>;

struct MadeUp(Names);

impl fmt::Debug for MadeUp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MadeUp")
    }
}

impl Resolver for MadeUp {
    fn resolve<'n>(
        &'n self,
        name: &'n str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'n>> {
        let found = (self.0)(name);
        Box::pin(async { found })
    }
}

/// Asks the guard, under the strictest policy, whether a request to an origin would be sent.
pub fn check_origin(names: Names) -> impl Fn(Origin) -> Checking + Send + Sync {
    let clock = Arc::new(SystemClock::new());
    let guard = Arc::new(Guard::new(address::Policy::default(), Arc::new(MadeUp(names)), clock));
    move |origin| {
        let guard = Arc::clone(&guard);
        Box::pin(async move { guard.check(&origin).await })
    }
}
