//! Which build this is: its version, and the commit it was made of, where `make` told.

use std::sync::LazyLock;

use postrider_api::Build;

pub(crate) const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: match option_env!("POSTRIDER_COMMIT") {
        Some(commit) => commit,
        None => "unknown",
    },
};

/// What `--version` says after the program's name.
pub(crate) static TEXT: LazyLock<String> = LazyLock::new(|| format!("{} ({})", BUILD.version, BUILD.commit));
