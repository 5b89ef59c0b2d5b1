//! The metrics of the broker's side, known from the start.

/// Describes the metrics and shows them at zero. Call it once, where a broker is used.
pub fn register() {
    metrics::describe_gauge!(
        "postrider_broker_up",
        "Whether this process reaches the broker, and it has confirmed a message and takes more."
    );
    metrics::gauge!("postrider_broker_up").set(0.0);
    for (name, description) in COUNTERS {
        metrics::describe_counter!(*name, *description);
        metrics::counter!(*name).increment(0);
    }
}

const COUNTERS: &[(&str, &str)] = &[
    ("postrider_outbox_published_total", "Messages that the broker has confirmed."),
    ("postrider_outbox_failed_total", "Messages that were not confirmed, and are published again."),
    (
        "postrider_outbox_given_up_total",
        "Messages that waited for too long for the broker and were given up; their deliveries are in the table.",
    ),
    ("postrider_broker_epochs_total", "Times that the broker was found without its queues."),
    (
        "postrider_reannounced_deliveries_total",
        "Open deliveries announced anew, since the broker had lost its queues.",
    ),
    ("postrider_unreadable_messages_total", "Messages that nobody could read, set aside for people."),
];
