//! What a node is started with: its directory, its configuration, its command.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use postrider_embedded::account::Account;

use super::{Address, USER, VIRTUAL_HOST};
use crate::authority::Authority;
use crate::program;

/// Every node has it: without epmd nobody looks a node up by its name.
const NODE: &str = "postrider@localhost";
/// Below it lie RabbitMQ's programs of each version, and below `plugins` the applications they consist of.
const INSTALLED: &str = "/usr/lib/rabbitmq/lib";

/// What the virtual machine may take. One scheduler that does not wait busily: all tests share the processors.
const MACHINE: &str =
    "+W w +S 1:1 +SDcpu 1:1 +SDio 2 +sbwt none +sbwtdcpu none +sbwtdio none +P 65536 +Q 65536";
/// No name server, no address but loopback, no network partitions in a cluster of one.
const DISTRIBUTION: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} \
     -kernel prevent_overlapping_partitions false";
/// RabbitMQ itself, without the system's log. Nothing is forced to disk: a killed program loses nothing by that.
const BROKER: &str = "-noinput -s rabbit boot -boot start_sasl -syslog logger [] -syslog syslog_error_logger false -ra wal_sync_method none";

/// Makes everything in a node's directory but its data.
pub(super) fn prepare(address: &Address, authority: Option<&Authority>) {
    let home = &address.home;
    let cookie = home.join(".erlang.cookie");
    fs::remove_file(&cookie).or_else(absent).expect("an old cookie can go");
    program::write_private(&cookie, &program::password());
    fs::set_permissions(&cookie, std::os::unix::fs::PermissionsExt::from_mode(0o400)).expect("it is ours");
    program::write_private(&home.join("enabled_plugins"), "[].\n");
    program::write_private(&home.join("rabbitmq.conf"), &configuration(address));
    if let Some(authority) = authority {
        let issued = authority.issue_pem(&["127.0.0.1", "localhost"]);
        program::write_private(&home.join("authority.pem"), &authority.certificate_pem());
        program::write_private(&home.join("certificate.pem"), &issued.certificate);
        program::write_private(&home.join("key.pem"), &issued.key);
    }
    link_applications(&home.join("applications"));
}

fn absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The node's data, which a test may remove.
pub(super) fn data(address: &Address) -> PathBuf {
    address.home.join("data")
}

pub(super) fn command(address: &Address) -> Command {
    let home = &address.home;
    let mut command = Account::Own.command(&program::find("erl"));
    command
        .env("HOME", home)
        .env("ERL_LIBS", home.join("applications"))
        .env("ERL_CRASH_DUMP_SECONDS", "0")
        .env("ERL_MAX_PORTS", "65536")
        .env("RABBITMQ_NODENAME", NODE)
        .env("RABBITMQ_DIST_PORT", address.distribution_port.to_string())
        .env("RABBITMQ_CONFIG_FILE", home.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", home.join("enabled_plugins"))
        .env("RABBITMQ_PLUGINS_DIR", home.join("applications"))
        .env("RABBITMQ_PLUGINS_EXPAND_DIR", home.join("plugins"))
        .env("RABBITMQ_MNESIA_BASE", data(address))
        .env("RABBITMQ_FEATURE_FLAGS_FILE", data(address).join("feature_flags"))
        .env("RABBITMQ_GENERATED_CONFIG_DIR", home.join("generated"))
        .env("RABBITMQ_LOG_BASE", home.join("logs"))
        .env("RABBITMQ_LOGS", "-");
    command.args(MACHINE.split(' ')).args(DISTRIBUTION.split_whitespace()).args(BROKER.split(' '));
    command.args(["-sname", NODE, "-erl_epmd_port", &address.distribution_port.to_string()]);
    command
}

fn configuration(address: &Address) -> String {
    let Address { port, tls_port, password, .. } = address;
    let home = address.home.display();
    let tls = tls_port.map_or_else(String::new, |port| {
        format!(
            "listeners.ssl.1 = 127.0.0.1:{port}\n\
             ssl_options.cacertfile = {home}/authority.pem\n\
             ssl_options.certfile = {home}/certificate.pem\n\
             ssl_options.keyfile = {home}/key.pem\n\
             ssl_options.verify = verify_none\n\
             ssl_options.fail_if_no_peer_cert = false\n"
        )
    });
    format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\n\
         num_acceptors.tcp = 2\n\
         default_user = {USER}\n\
         default_pass = {password}\n\
         default_vhost = {VIRTUAL_HOST}\n\
         loopback_users = none\n\
         log.console = true\n\
         log.console.level = warning\n\
         disk_free_limit.absolute = 1MB\n\
         raft.wal_max_size_bytes = 16777216\n\
         {tls}"
    )
}

/// Links to the applications that RabbitMQ consists of, without its plugins: a module is looked for in the directory of
/// one after the other, and a node with all of them takes twice as long to start.
fn link_applications(directory: &Path) {
    fs::create_dir_all(directory).expect("the node's directory is ours");
    for entry in fs::read_dir(applications()).expect("RabbitMQ's applications can be listed") {
        let entry = entry.expect("a directory can be read");
        let name = entry.file_name().into_string().expect("names of applications are plain");
        let is_plugin = name.starts_with("rabbitmq_") && !name.starts_with("rabbitmq_prelaunch");
        let link = directory.join(&name);
        if !is_plugin && !link.exists() {
            symlink(entry.path(), link).expect("the node's directory is ours");
        }
    }
}

fn applications() -> PathBuf {
    let versions = fs::read_dir(INSTALLED).into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("plugins")).filter(|path| path.is_dir()).max();
    found.expect("RabbitMQ is missing: scripts/setup test installs it")
}
