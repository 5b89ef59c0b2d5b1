//! `postrider openapi`: prints the OpenAPI document.

use std::io::Write;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  postrider openapi > openapi.json
  postrider openapi | jq '.paths | keys'";

/// Print the OpenAPI 3.1 document of the HTTP surface.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(postrider_api::document().as_bytes())?)
}
