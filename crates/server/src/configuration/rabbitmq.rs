//! The broker, if one is used beside the table.

use std::path::Path;

use postrider_broker::rabbit::{Address, BadAddress};

use super::{
    deliveries::certificates,
    setting,
    source::{Recorded, Source},
};

/// Where the broker is; `None`: the table is the queue.
#[derive(Debug)]
pub(crate) struct RabbitMq(pub(crate) Option<Address>);

impl RabbitMq {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let authorities = source.optional(&setting::RABBITMQ_CA_FILE, |path| certificates(Path::new(path)));
        let authorities = authorities?;
        let address = source.optional(&setting::RABBITMQ_URL, |url| {
            let authorities = authorities.as_ref().map(|pem| String::from_utf8_lossy(pem).into_owned());
            Address::new(url, authorities)
                .map_err(|BadAddress| format!("is not the URL of a broker: {BadAddress}"))
        });
        Ok(Self(address?))
    }
}
