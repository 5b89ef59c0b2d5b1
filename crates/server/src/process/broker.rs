//! The broker's side of a process: who publishes, and who consumes.

use std::sync::Arc;

use postrider_api::OptionalDependency;
use postrider_broker::rabbit::{self, RabbitMq};
use postrider_core::queue::Queue as _;
use postrider_engine::supervisor::Supervisor;
use sqlx::postgres::PgConnectOptions;

use super::Role;
use crate::configuration::Configuration;

/// Starts what a role needs of the broker. `None`: none is used. One that cannot be reached is no error: it is tried again and
/// again.
pub(super) fn start(
    configuration: &Configuration,
    role: Role,
    options: &PgConnectOptions,
    supervisor: &mut Supervisor,
) -> Option<Arc<RabbitMq>> {
    let address = configuration.rabbitmq.0.clone()?;
    let sends_at_once = match role {
        Role::All | Role::Worker => Some(configuration.worker.concurrency),
        Role::Api => None,
    };
    rabbit::register_metrics();
    tracing::info!(?address, "deliveries are announced through a broker, once it can be used");
    let broker = RabbitMq::new(rabbit::Settings {
        address,
        options: options.clone(),
        sends_at_once,
        draining: supervisor.shutdown().draining_token(),
    });
    for (name, task) in broker.tasks() {
        supervisor.start(name, task);
    }
    Some(broker)
}

pub(super) fn dependency(broker: &Arc<RabbitMq>) -> OptionalDependency {
    let broker = Arc::clone(broker);
    OptionalDependency {
        name: "rabbitmq",
        note: "RabbitMQ cannot be used: deliveries are found in the table, which takes a little longer.",
        is_up: Arc::new(move || broker.is_up()),
    }
}
