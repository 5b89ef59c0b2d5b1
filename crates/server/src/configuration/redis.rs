//! The Redis in which processes share their limits, if they do.

use std::path::Path;

use postrider_broker::redis::Address;

use super::{
    deliveries::certificates,
    setting,
    source::{Recorded, Source},
};

#[derive(Debug)]
pub(crate) struct Redis {
    /// `None`: each process holds its limits alone.
    pub(crate) address: Option<Address>,
    /// Further certificate authorities, in PEM.
    pub(crate) authorities_pem: Option<Vec<u8>>,
}

impl Redis {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let address = source.optional(&setting::REDIS_URL, |url| {
            url.parse::<Address>().map_err(|error| {
                format!("{error}: give the URL of a Redis, such as rediss://USER:PASSWORD@HOST:6379")
            })
        });
        let authorities = source.optional(&setting::REDIS_CA_FILE, |path| certificates(Path::new(path)));
        let redis = Self { address: address?, authorities_pem: authorities? };
        redis.validate(source)?;
        Ok(redis)
    }

    /// Whoever names an authority believes that it is asked.
    fn validate(&self, source: &mut Source<'_>) -> Result<(), Recorded> {
        let is_encrypted = self.address.as_ref().is_some_and(Address::is_encrypted);
        if self.authorities_pem.is_none() || is_encrypted {
            return Ok(());
        }
        let url = setting::REDIS_URL.variable;
        let mend = format!("is of no use, since {url} is no rediss:// URL: change that, or leave this out");
        Err(source.record(&setting::REDIS_CA_FILE, mend))
    }
}
