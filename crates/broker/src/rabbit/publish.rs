//! The publisher: takes messages out of the outbox and gives them to the broker, a window at a time.
//!
//! Invariant: a message leaves the outbox only when the broker has confirmed it and not returned it: a broker confirms what it
//! has no queue for, too.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::{join_all, select_all};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use postrider_core::queue::Route;
use postrider_store::{
    lanes::{self, Lane, Line},
    outbox::{self, Claim, Held},
};

use super::{Error, RabbitMq, Tries, bounded, connect::ANSWER_TIMEOUT, watch};

/// Publishers of one process: while one waits for confirms, another claims.
const PUBLISHERS: usize = 2;
/// Messages that a publisher has under way at once.
const WINDOW: u16 = 64;
/// How long a window is a publisher's own. Much longer than a broker may take, so that only those who ended lose theirs.
const HOLD: Duration = Duration::from_secs(30);
/// Between two looks at the whole outbox, also when nothing is announced: what another process left is found by them.
const POLL: Duration = Duration::from_millis(500);
/// Numbers are given before the commit, so smaller ones may appear later; a look begins so far before the last window.
const OUT_OF_ORDER: i64 = 256;
const ERROR_PAUSE: Duration = Duration::from_millis(300);
/// The name of no queue.
const NOWHERE: &str = "postrider.nowhere";
/// Delivery mode of a message that is to survive a restart of the broker.
const PERSISTENT: u8 = 2;

/// Runs until the drain.
pub(super) async fn run(rabbit: &RabbitMq) {
    let mut line = Line::new(rabbit.settings.options.clone(), Lane::Background);
    let mut tries = Tries::of("publisher");
    while !rabbit.is_draining() {
        let published = connected(rabbit, &mut line, &mut tries).await;
        rabbit.set_publishing(false);
        if let Err(error) = published {
            tries.failed(rabbit, &error).await;
        }
    }
}

/// Publishes over one connection until it breaks or takes no messages, or until the drain.
async fn connected(rabbit: &RabbitMq, line: &mut Line, tries: &mut Tries) -> Result<(), Error> {
    let connection = tokio::select! {
        connection = rabbit.connect(tries.what, line) => connection?,
        () = rabbit.settings.draining.cancelled() => return Ok(()),
    };
    let (is_blocked, is_proven) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut publishers = Vec::with_capacity(PUBLISHERS);
    for _ in 0..PUBLISHERS {
        publishers.push(Publisher::new(rabbit, open(&connection).await?, &is_blocked));
    }
    let watching = watch(&connection, |blocked| {
        is_blocked.store(blocked, Ordering::Relaxed);
        rabbit.set_publishing(is_proven.load(Ordering::Relaxed) && !blocked);
    });
    let publishing = async {
        publishers[0].prove().await?;
        is_proven.store(true, Ordering::Relaxed);
        tries.succeeded();
        rabbit.set_publishing(!is_blocked.load(Ordering::Relaxed));
        // The first that fails ends them all: they share the connection.
        let (error, ..) = select_all(publishers.iter_mut().map(|publisher| Box::pin(publisher.run()))).await;
        Err(error)
    };
    let ended = tokio::select! {
        error = watching => Err(error),
        ended = publishing => ended,
        () = rabbit.settings.draining.cancelled() => Ok(()),
    };
    for publisher in &mut publishers {
        publisher.give_back().await;
    }
    ended
}

/// What a look at the outbox has brought.
enum Found {
    /// At least there may be more.
    Something,
    /// All of it was looked at.
    Nothing,
}

struct Publisher<'a> {
    rabbit: &'a RabbitMq,
    channel: Channel,
    is_blocked: &'a AtomicBool,
    line: Line,
    /// The window in hand, and those of it that the broker has confirmed.
    held: Vec<Held>,
    published: Vec<i64>,
    /// Where the next look at the outbox begins.
    from: i64,
}

impl<'a> Publisher<'a> {
    fn new(rabbit: &'a RabbitMq, channel: Channel, is_blocked: &'a AtomicBool) -> Self {
        let line = Line::new(rabbit.settings.options.clone(), Lane::Outbox);
        Self { rabbit, channel, is_blocked, line, held: Vec::new(), published: Vec::new(), from: i64::MIN }
    }

    /// Publishes something, and what waits for it: an account may connect and declare, and not write, and a queue may be
    /// there and take nothing. Until then nobody relies on the broker.
    async fn prove(&mut self) -> Result<(), Error> {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let nothing = self.channel.basic_publish("".into(), NOWHERE.into(), options, &[], properties);
        let proving = async { judge(NOWHERE, nothing.await?).await };
        self.patiently(proving).await??;
        self.round().await.map(|_| ())
    }

    /// Ends only with an error of the broker.
    async fn run(&mut self) -> Error {
        loop {
            match self.round().await {
                Ok(Found::Something) => {}
                Ok(Found::Nothing) => self.rest().await,
                Err(error) => return error,
            }
        }
    }

    async fn round(&mut self) -> Result<Found, Error> {
        let claim = Claim { from: self.from, limit: WINDOW, hold: HOLD };
        let held = match self.line.connection().await {
            Ok(open) => lanes::bounded(outbox::advance(open, &self.published, claim)).await,
            Err(error) => Err(error),
        };
        // What could not be removed is published again after its hold: its rows are found claimed or gone.
        self.published.clear();
        self.held.clear();
        let Ok(held) = self.line.checked(held) else {
            tokio::time::sleep(ERROR_PAUSE).await;
            return Ok(Found::Something);
        };
        let Some(first) = held.first() else {
            let found = if self.from == i64::MIN { Found::Nothing } else { Found::Something };
            self.from = i64::MIN;
            return Ok(found);
        };
        self.from = first.outbox_id - OUT_OF_ORDER;
        self.held = self.known(held);
        let outcome = self.publish().await;
        metrics::counter!("postrider_outbox_published_total").increment(self.published.len() as u64);
        outcome.map(|()| Found::Something)
    }

    /// Without what only a newer program has a queue for: that one takes it when our hold has ended.
    fn known(&self, held: Vec<Held>) -> Vec<Held> {
        let (known, unknown): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|message| Route::from_name(&message.route).is_some());
        if let Some(Held { route, .. }) = unknown.first() {
            self.rabbit.newer.call_once(|| {
                tracing::warn!(
                    route,
                    "messages for a queue that only a newer version knows are left to that one"
                );
            });
        }
        known
    }

    async fn rest(&self) {
        tokio::select! {
            () = self.rabbit.announced.notified() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }

    /// Publishes the window; what is confirmed is in `published`, also where others failed.
    async fn publish(&mut self) -> Result<(), Error> {
        let mut under_way = Vec::with_capacity(self.held.len());
        let sending = async {
            for message in &self.held {
                under_way.push((message, send(&self.channel, message).await?));
            }
            Ok::<(), Error>(())
        };
        self.patiently(sending).await??;
        let confirms = join_all(under_way.into_iter().map(|(message, confirm)| async move {
            (message.outbox_id, judge(&message.route, confirm).await)
        }));
        let mut failure = None;
        for (outbox_id, judged) in self.patiently(confirms).await? {
            match judged {
                Ok(()) => self.published.push(outbox_id),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits for the broker; while it takes no messages, as long as that lasts.
    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(ANSWER_TIMEOUT, &mut work).await {
                Ok(done) => return Ok(done),
                Err(_) if self.is_blocked.load(Ordering::Relaxed) => {}
                Err(_) => return Err(Error::Silent),
            }
        }
    }

    /// So that the next try need not wait for the end of the hold.
    async fn give_back(&mut self) {
        let left: Vec<i64> =
            self.held.iter().map(|held| held.outbox_id).filter(|id| !self.published.contains(id)).collect();
        metrics::counter!("postrider_outbox_failed_total").increment(left.len() as u64);
        let given_back = match self.line.connection().await {
            Ok(open) => lanes::bounded(outbox::give_back(open, &self.published, &left)).await,
            Err(error) => Err(error),
        };
        // Else the hold ends by itself.
        let _ = self.line.checked(given_back);
    }
}

async fn open(connection: &Connection) -> Result<Channel, Error> {
    let channel = bounded(connection.create_channel()).await?;
    bounded(channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}

async fn send(channel: &Channel, message: &Held) -> Result<PublisherConfirm, Error> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(reason) = &message.reason {
        let mut headers = FieldTable::default();
        headers
            .insert(ShortString::from("x-postrider-reason"), AMQPValue::LongString(reason.as_str().into()));
        properties = properties.with_headers(headers);
    }
    let route = ShortString::from(message.route.as_str());
    Ok(channel.basic_publish("".into(), route, options, &message.payload, properties).await?)
}

async fn judge(route: &str, confirm: PublisherConfirm) -> Result<(), Error> {
    match confirm.await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Err(Error::Unroutable(route.to_owned())),
        Confirmation::Nack(None) | Confirmation::NotRequested => Err(Error::Refused(route.to_owned())),
    }
}
