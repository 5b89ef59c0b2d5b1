//! A dead letter that is sent again, and who hears of it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use postrider_core::{
    id::DeliveryId,
    port::Pending,
    queue::{Arrival, Pointer, Queue, read},
};
use postrider_store::wake::{self, Call, Listener};

use crate::{
    reads::{end_as_dead_letter, publish},
    surface::Surface,
};

/// A queue that brings nothing, and how often it was told.
#[derive(Debug)]
struct Told {
    is_up: bool,
    times: AtomicU64,
}

impl Queue for Told {
    fn arrival(&self) -> Pending<'_, Arrival> {
        Box::pin(std::future::pending())
    }

    fn is_up(&self) -> bool {
        self.is_up
    }

    fn announced(&self) {
        self.times.fetch_add(1, Ordering::Relaxed);
    }
}

/// The queue where it can be used, and else the workers; the message is written in any case, if there is a queue at all.
#[tokio::test]
async fn the_queue_hears_of_it_or_the_workers_do() {
    for is_up in [None, Some(false), Some(true)] {
        let told = is_up.map(|is_up| Arc::new(Told { is_up, times: AtomicU64::new(0) }));
        let queue = told.clone().map(|told| -> Arc<dyn Queue> { told });
        let surface = Surface::with(|settings| settings.queue = queue).await;
        let acme = surface.tenant("acme").await;
        let pool = surface.database.pool();
        let options = pool.connect_options().as_ref().clone();
        let mut workers = Listener::connect(options).await.expect("a connection that listens");
        let event = publish(&surface, &acme, "order.created").await;
        let of_the_event = workers.heard().await.expect("a call");
        assert!(matches!(of_the_event, Call::At { .. }), "{of_the_event:?}");
        let timeline = format!("/api/tenants/acme/events/{event}/timeline");
        let timeline = surface.get(&timeline, &acme.viewer).await.expect(200);
        let delivery = timeline["deliveries"][0]["id"].as_str().expect("id").to_owned();
        end_as_dead_letter(&surface, &delivery).await;
        let retry = format!("/api/tenants/acme/deliveries/{delivery}/retry");
        surface.post(&retry, &acme.developer).await.expect(202);

        // Behind whatever was called before.
        wake::notify_from(pool, Call::Look).await.expect("called");
        let is_woken = matches!(workers.heard().await.expect("a call"), Call::At { .. });
        let told = told.map(|told| told.times.load(Ordering::Relaxed));
        assert_eq!((is_woken, told), (is_up != Some(true), is_up.map(u64::from)), "{is_up:?}");
        let messages: Vec<Vec<u8>> = sqlx::query_scalar("SELECT payload FROM postrider.outbox")
            .fetch_all(pool)
            .await
            .expect("the outbox can be read");
        let named: Vec<Pointer> =
            messages.iter().flat_map(|message| read(message).expect("a message")).collect();
        let named: Vec<_> = named.iter().map(|named| (named.delivery_id, named.attempt_number)).collect();
        let id: DeliveryId = delivery.parse().expect("delivery id");
        assert_eq!(named, if is_up.is_some() { vec![(id, 1)] } else { Vec::new() }, "{is_up:?}");
    }
}
