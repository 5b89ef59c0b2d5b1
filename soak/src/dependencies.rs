//! What the processes of a fleet use beside their database and can do without: a RabbitMQ and a Redis of the soak's own.
//!
//! Invariant: both run whenever nothing is done to them, under URLs that stay the same.

use std::{fs, path::Path, sync::Arc, time::Duration};

use postrider_testkit::{
    rabbitmq::{Broker, Node},
    redis::Redis,
};
use tokio::{task::JoinSet, time::sleep};

use crate::{clock, error::Error, plan::Trouble, queue::Queue, shape::Dependency};

/// The queue that workers consume.
const READY: &str = "postrider.ready";
/// A publisher that was killed holds its messages for 30 seconds; the rest is time to reach a broker again, and to work.
const REST_LIMIT: Duration = Duration::from_secs(50);
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(250);

pub(crate) struct Dependencies {
    /// Away while something is done to it.
    node: Option<Node>,
    broker: Arc<Broker>,
    redis: Option<Redis>,
    variables: [(&'static str, String); 2],
}

/// What is on its way, or not as it should be, when everything has come to rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unrest {
    /// Messages that no broker has confirmed.
    pub(crate) unpublished: usize,
    /// Messages that no worker has acknowledged; one if there is no queue for them.
    pub(crate) unacknowledged: usize,
    /// Processes that have no connection to Redis.
    pub(crate) apart: usize,
}

impl Dependencies {
    /// Starts both; what they log can be read in `logs`, also when they are gone.
    pub(crate) async fn start(logs: &Path) -> Result<Self, Error> {
        let (node, broker) = apart(Broker::own_node()).await?;
        let redis = apart(Redis::fresh()).await?;
        for (log, name) in [(node.log(), "rabbitmq.log"), (redis.log(), "redis.log")] {
            let link = logs.join(name);
            fs::hard_link(log, &link).map_err(Error::io("make the link", link))?;
        }
        let variables = [("POSTRIDER_RABBITMQ_URL", broker.url()), ("POSTRIDER_REDIS_URL", redis.url())];
        Ok(Self { node: Some(node), broker: Arc::new(broker), redis: Some(redis), variables })
    }

    /// How a process finds them.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        self.variables.to_vec()
    }

    /// Does it, and returns when it is over.
    pub(crate) async fn suffer(&mut self, of: Dependency, trouble: Trouble) -> Result<(), Error> {
        match of {
            Dependency::Broker => {
                let node = self.node.take().ok_or(Error::NoDependency(of.as_str()))?;
                self.node = Some(apart(trouble_node(node, trouble)).await?);
            }
            Dependency::Redis => {
                let redis = self.redis.take().ok_or(Error::NoDependency(of.as_str()))?;
                self.redis = Some(apart(trouble_redis(redis, trouble)).await?);
            }
        }
        Ok(())
    }

    /// Waits until nothing is on its way and all processes are back; tells what is not so in the end.
    pub(crate) async fn come_to_rest(&mut self, queue: &Queue, processes: usize) -> Result<Unrest, Error> {
        let began = clock::monotonic();
        loop {
            let unrest = self.look(queue, processes).await?;
            if unrest == Unrest::default() || began.elapsed() > REST_LIMIT {
                return Ok(unrest);
            }
            sleep(PAUSE_BETWEEN_LOOKS).await;
        }
    }

    async fn look(&mut self, queue: &Queue, processes: usize) -> Result<Unrest, Error> {
        let broker = Arc::clone(&self.broker);
        let depths = apart(async move { broker.depths().await }).await?;
        let on_their_way = depths.get(READY).map(|depth| depth.ready + depth.unacknowledged);
        let redis = self.redis.take().ok_or(Error::NoDependency(Dependency::Redis.as_str()))?;
        let (redis, connections) = apart(async move {
            let connections = redis.count_connections().await;
            (redis, connections)
        })
        .await?;
        self.redis = Some(redis);
        Ok(Unrest {
            unpublished: queue.unpublished().await?,
            unacknowledged: on_their_way.map_or(1, |count| usize::try_from(count).unwrap_or(usize::MAX)),
            apart: processes.saturating_sub(connections),
        })
    }
}

async fn trouble_node(mut node: Node, trouble: Trouble) -> Node {
    match trouble {
        Trouble::Killed { away } => {
            node.kill().await;
            sleep(away).await;
            node.start().await;
        }
        Trouble::Emptied => node.wipe().await,
        Trouble::Frozen { lasting } => {
            node.freeze();
            sleep(lasting).await;
            node.thaw();
        }
    }
    node
}

async fn trouble_redis(mut redis: Redis, trouble: Trouble) -> Redis {
    match trouble {
        Trouble::Killed { away } => {
            redis.kill();
            sleep(away).await;
            redis.start().await;
        }
        Trouble::Emptied => redis.flush().await,
        Trouble::Frozen { lasting } => {
            redis.freeze();
            sleep(lasting).await;
            redis.thaw();
        }
    }
    redis
}

/// Runs as a task of its own what panics where a dependency cannot be handled: that is no verdict, and no panic.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Error> {
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    match tasks.join_next().await {
        Some(ended) => ended.map_err(Error::Dependency),
        // There is one task, and it ends once.
        None => std::future::pending().await,
    }
}
