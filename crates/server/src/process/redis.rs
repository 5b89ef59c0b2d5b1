//! Limits that processes share, where there is a Redis.

use std::sync::Arc;

use anyhow::Context as _;
use postrider_api::OptionalDependency;
use postrider_broker::redis::{self, Redis};
use postrider_engine::{clock::Clock, supervisor::Supervisor, transport::roots};

use crate::configuration::{Configuration, setting};

/// `None`: each process holds its limits alone. A Redis that cannot be reached is no error: it is tried again and again.
pub(super) async fn start(
    configuration: &Configuration,
    clock: &Arc<dyn Clock>,
    supervisor: &mut Supervisor,
) -> anyhow::Result<Option<Arc<Redis>>> {
    let Some(address) = configuration.redis.address.clone() else { return Ok(None) };
    let roots = roots(configuration.redis.authorities_pem.as_deref());
    let roots = roots.with_context(|| format!("{} cannot be used", setting::REDIS_CA_FILE.variable))?;
    let clock = Arc::clone(clock);
    let settings = redis::Settings { address, roots, monotonic: Arc::new(move || clock.monotonic()) };
    let (redis, lane) = redis::open(settings).await.context("TLS cannot be used for Redis")?;
    supervisor.start("redis", lane.run());
    Ok(Some(redis))
}

pub(super) fn dependency(redis: &Arc<Redis>) -> OptionalDependency {
    let redis = Arc::clone(redis);
    OptionalDependency {
        name: "redis",
        note: "Redis cannot be used: each process holds the limits of endpoints and tenants alone.",
        is_up: Arc::new(move || redis.is_up()),
    }
}
