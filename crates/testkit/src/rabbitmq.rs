//! RabbitMQ for tests: a virtual host on the node that all tests of a run share, or a node of a test's own.
//!
//! Invariant: nothing here uses a broker, a cookie or a name server (epmd) that was there before. The node runs as
//! `erl` without RabbitMQ's scripts, which know one account and one place; its tools find it by its port alone.
//!
//! | module | role |
//! |---|---|
//! | `launch` | what a node is started with |
//! | [`node`] | a node of a test's own: stopped, killed, emptied, alarmed |
//! | `control` | asks a node anything, in milliseconds: `erl_call`, where `rabbitmqctl` takes seconds |

mod control;
mod launch;
pub mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::authority::Authority;
use crate::program;
use crate::run::Run;
pub use node::Node;

/// The virtual host of a node of a test's own.
const VIRTUAL_HOST: &str = "postrider";
/// Who may do everything on a node.
const USER: &str = "postrider";
/// Longest wait for a virtual host to be dropped.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// How long between two looks at a queue, and the longest wait for what is wanted of it.
const POLL: Duration = Duration::from_millis(20);
const UNTIL_LIMIT: Duration = Duration::from_secs(30);

static SHARED: OnceCell<Address> = OnceCell::const_new();

/// How a node is reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Address {
    port: u16,
    tls_port: Option<u16>,
    /// Where other Erlang programs speak with it.
    distribution_port: u16,
    password: String,
    /// Where the cookie lies that its tools need.
    home: PathBuf,
}

/// One virtual host, and how to look into it and disturb it. Dropping one of the shared node drops the virtual host.
#[derive(Debug)]
pub struct Broker {
    address: Address,
    virtual_host: String,
    /// It goes by itself where the node is the test's own.
    is_shared: bool,
}

/// What waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    pub ready: u64,
    /// Delivered to a consumer that has not acknowledged it.
    pub unacknowledged: u64,
}

impl Broker {
    /// A virtual host of the test's own on the node that the tests of the run share.
    pub async fn shared_vhost() -> Self {
        let address = SHARED.get_or_init(async || {
            let written = Run::current().share("rabbitmq", start_shared).await;
            serde_json::from_str(&written).expect("as it was written")
        });
        let address = address.await.clone();
        let virtual_host = format!("test_{}", program::password());
        let created = format!(
            "V = <<\"{virtual_host}\">>, ok = rabbit_vhost:add(V, <<\"test\">>), All = <<\".*\">>, \
             ok = rabbit_auth_backend_internal:set_permissions(<<\"{USER}\">>, V, All, All, All, <<\"test\">>), \
             \"\"."
        );
        control::evaluate(&address, &created).await;
        Self { address, virtual_host, is_shared: true }
    }

    /// A virtual host on a node that the test may stop, kill, empty and alarm.
    pub async fn own_node() -> (Node, Self) {
        Self::of(Node::start_new(None).await)
    }

    /// The same with a second listener that speaks TLS, with a certificate for `127.0.0.1` and `localhost`.
    pub async fn own_node_with_tls(authority: &Authority) -> (Node, Self) {
        Self::of(Node::start_new(Some(authority)).await)
    }

    fn of(node: Node) -> (Node, Self) {
        let address = node.address().clone();
        (node, Self { address, virtual_host: VIRTUAL_HOST.to_owned(), is_shared: false })
    }

    /// For programs and connections of the test's own. It contains the password.
    pub fn url(&self) -> String {
        self.url_of("amqp", self.address.port)
    }

    /// The same over TLS; panics where the node has no such listener.
    pub fn tls_url(&self) -> String {
        self.url_of("amqps", self.address.tls_port.expect("a node with TLS"))
    }

    fn url_of(&self, scheme: &str, port: u16) -> String {
        format!("{scheme}://{USER}:{}@127.0.0.1:{port}/{}", self.address.password, self.virtual_host)
    }

    /// Every queue and what is in it at this moment; asked of the queues themselves, whose statistics lag by seconds. Waits
    /// for those that a node which has just started has not woken up yet.
    pub async fn depths(&self) -> BTreeMap<String, Depth> {
        let depths = "[begin {resource, _, queue, Name} = amqqueue:get_name(Q), \
             {Ready, Taken} = case amqqueue:get_type(Q) of \
                 rabbit_quorum_queue -> \
                     Ask = fun (Query) -> Again = fun (Again) -> case ra:leader_query(amqqueue:get_pid(Q), Query) of \
                         {ok, {_, N}, _} -> N; \
                         _ -> timer:sleep(20), Again(Again) \
                     end end, Again(Again) end, \
                     {Ask(fun rabbit_fifo:query_messages_ready/1), Ask(fun rabbit_fifo:query_messages_checked_out/1)}; \
                 _ -> \
                     [{_, R}, {_, T}] = rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged]), {R, T} \
             end, \
             io_lib:format(\"~s ~b ~b~n\", [Name, Ready, Taken]) end || Q <- rabbit_amqqueue:list(V)].";
        self.evaluate(depths).await.lines().map(depth).collect()
    }

    /// What is in one queue; panics where there is none of that name.
    pub async fn depth(&self, queue: &str) -> Depth {
        let depths = self.depths().await;
        *depths.get(queue).unwrap_or_else(|| panic!("no queue {queue} among {depths:?}"))
    }

    /// Waits until what is in a queue is as wanted; panics where it does not become so.
    pub async fn until(&self, queue: &str, is_wanted: impl Fn(Depth) -> bool) {
        let waiting = async {
            while !is_wanted(self.depth(queue).await) {
                tokio::time::sleep(POLL).await;
            }
        };
        let waited = tokio::time::timeout(UNTIL_LIMIT, waiting).await;
        assert!(waited.is_ok(), "not as wanted within {UNTIL_LIMIT:?}: {:?}", self.depths().await);
    }

    /// Drops everything that waits in a queue.
    pub async fn purge_queue(&self, queue: &str) {
        self.on_queue(queue, "{ok, _} = rabbit_amqqueue:purge(Q), \"\".").await;
    }

    /// Deletes a queue with everything in it.
    pub async fn delete_queue(&self, queue: &str) {
        self.on_queue(queue, "{ok, _} = rabbit_amqqueue:delete(Q, false, false, <<\"test\">>), \"\".").await;
    }

    /// Removes what binds a queue to exchanges. The default exchange reaches it still.
    pub async fn unbind_queue(&self, queue: &str) {
        let unbind = "[ok = rabbit_binding:remove(B, <<\"test\">>) || \
             B <- rabbit_binding:list_for_destination(amqqueue:get_name(Q)), \
             element(2, B) =/= rabbit_misc:r(V, exchange, <<>>)], \"\".";
        self.on_queue(queue, unbind).await;
    }

    /// Closes every connection to this virtual host, as an operator may.
    pub async fn close_connections(&self) {
        let close = "[rabbit_networking:close_connection(C, \"closed by a test\") || \
             C <- rabbit_networking:connections(), \
             catch rabbit_networking:connection_info(C, [vhost]) =:= [{vhost, V}]], \"\".";
        self.evaluate(close).await;
    }

    /// The connections to this virtual host, each under a name that no later one has.
    pub async fn connections(&self) -> BTreeSet<String> {
        let list = "[io_lib:format(\"~p~n\", [C]) || C <- rabbit_networking:connections(), \
             catch rabbit_networking:connection_info(C, [vhost]) =:= [{vhost, V}]].";
        self.evaluate(list).await.lines().map(ToOwned::to_owned).collect()
    }

    /// Lets channels that are opened from now on write only where `pattern` says, a regular expression.
    pub async fn permit_writing(&self, pattern: &str) {
        let permitted = format!(
            "All = <<\".*\">>, ok = rabbit_auth_backend_internal:set_permissions(\
                 <<\"{USER}\">>, V, All, <<\"{pattern}\">>, All, <<\"test\">>), \"\"."
        );
        self.evaluate(&permitted).await;
    }

    /// Lets a queue take nothing while anything is in it, or anything again. What it refuses is not confirmed.
    pub async fn set_full(&self, queue: &str, is_full: bool) {
        let set = if is_full {
            format!(
                "Full = [{{<<\"max-length\">>, 0}}, {{<<\"overflow\">>, <<\"reject-publish\">>}}], \
                 ok = rabbit_policy:set(V, <<\"full\">>, <<\"^{queue}$\">>, Full, 0, <<\"queues\">>, <<\"test\">>), \"\"."
            )
        } else {
            "ok = rabbit_policy:delete(V, <<\"full\">>, <<\"test\">>), \"\".".to_owned()
        };
        self.evaluate(&set).await;
    }

    async fn on_queue(&self, queue: &str, expression: &str) {
        let queue = format!("{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(V, queue, <<\"{queue}\">>)), ");
        self.evaluate(&(queue + expression)).await;
    }

    /// Evaluates Erlang in which `V` is the virtual host's name.
    async fn evaluate(&self, expression: &str) -> String {
        let virtual_host = format!("V = <<\"{}\">>, ", self.virtual_host);
        control::evaluate(&self.address, &(virtual_host + expression)).await
    }
}

impl Drop for Broker {
    /// Best effort: what is left goes with the node. A thread, because a destructor cannot wait in the test's runtime.
    fn drop(&mut self) {
        if !self.is_shared {
            return;
        }
        let (address, virtual_host) = (self.address.clone(), self.virtual_host.clone());
        let (dropped, is_dropped) = mpsc::channel();
        thread::spawn(move || {
            let delete = format!("rabbit_vhost:delete(<<\"{virtual_host}\">>, <<\"test\">>), \"\".");
            dropped.send(control::evaluate_blocking(&address, &delete))
        });
        if !matches!(is_dropped.recv_timeout(DROP_LIMIT), Ok(Ok(_))) {
            eprintln!("virtual host {} stays until the test run ends", self.virtual_host);
        }
    }
}

async fn start_shared(run: &Run) -> String {
    let node = Node::start_new(None).await;
    let written = serde_json::to_string(node.address()).expect("an address is plain");
    node.detach(run);
    written
}

/// Reads a line of [`Broker::depths`].
fn depth(line: &str) -> (String, Depth) {
    let mut words = line.rsplitn(3, ' ');
    let mut number = || words.next().expect("three words").parse().expect("a number");
    let (unacknowledged, ready) = (number(), number());
    let queue = words.next().expect("three words").to_owned();
    (queue, Depth { ready, unacknowledged })
}
