//! What happens when RabbitMQ fails: deliveries go on, and everything is accounted for.
