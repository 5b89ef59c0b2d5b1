//! One connection to Redis. It is driven by whoever uses it, so no task outlives it, and it is given up at the first thing
//! that goes wrong: another one knows nothing of what this one was asked.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    Address,
    batch::{self, Call},
};

/// Longest time for a call. A process that is short of time takes tens of milliseconds for a turn; a Redis that takes
/// longer than this is worth less than the limits of one process.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(1);
/// Longest time to connect, with everything that is asked once.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

const SCRIPT: &str = include_str!("limits.lua");

/// Why Redis cannot be used for now. Each says all of it, since it is written to the log alone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no connection to it: {0}")]
    Connect(io::Error),
    #[error("its host cannot stand in a certificate")]
    Name,
    #[error("TLS cannot be used: {0}")]
    Tls(rustls::Error),
    #[error("it cannot be talked to: {0}")]
    Protocol(RedisError),
    #[error("it refuses a command with {0}")]
    Refused(String),
    #[error("it does not answer in time")]
    Slow,
    #[error("it closed the connection")]
    Closed,
    #[error("it answers something else than was asked")]
    Unexpected,
}

/// How to connect.
pub(super) struct Connector {
    address: Address,
    tls: Arc<ClientConfig>,
}

/// Bytes both ways, under TLS or not.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(super) struct Connection {
    redis: MultiplexedConnection,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// What the server calls the script.
    script: String,
}

impl Connector {
    pub(super) fn new(address: Address, roots: rustls::RootCertStore) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, tls: Arc::new(tls) })
    }

    /// Connects, logs in, leaves the script there and tries it.
    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        timeout(CONNECT_LIMIT, self.try_connect()).await.unwrap_or(Err(Error::Slow))
    }

    async fn try_connect(&self) -> Result<Connection, Error> {
        // Calls are bounded here and not by the client.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let wire = self.wire().await?;
        let (redis, driver) = MultiplexedConnection::new_with_config(&self.address.login, wire, config)
            .await
            .map_err(Error::Protocol)?;
        let mut connection = Connection { redis, driver: Box::pin(driver), script: String::new() };
        connection.load().await?;
        // Whoever lets us in may refuse all the rest: a replica, a full server, an account without the right.
        for call in batch::probe() {
            connection.try_call(&[call]).await?;
        }
        Ok(connection)
    }

    async fn wire(&self) -> Result<Box<dyn Wire>, Error> {
        let Address { host, port, is_encrypted, .. } = &self.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Connect)?;
        if !is_encrypted {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host.clone()).map_err(|_| Error::Name)?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await;
        Ok(Box::new(stream.map_err(Error::Connect)?))
    }
}

impl Connection {
    /// The answers to some calls, in their order.
    pub(super) async fn call(&mut self, calls: &[Call]) -> Result<Vec<Vec<i64>>, Error> {
        timeout(CALL_LIMIT, self.try_call(calls)).await.unwrap_or(Err(Error::Slow))
    }

    /// Asks for a sign of life.
    pub(super) async fn probe(&mut self) -> Result<(), Error> {
        let ping = self.ask([redis::cmd("PING")]);
        match timeout(CALL_LIMIT, ping).await.unwrap_or(Err(Error::Slow))?.pop() {
            Some(Value::ServerError(error)) => Err(Error::Refused(error.code().to_owned())),
            Some(_) => Ok(()),
            None => Err(Error::Unexpected),
        }
    }

    /// Completes when the connection has ended.
    pub(super) async fn closed(&mut self) {
        self.driver.as_mut().await;
    }

    async fn try_call(&mut self, calls: &[Call]) -> Result<Vec<Vec<i64>>, Error> {
        let commands: Vec<Cmd> = calls.iter().map(|call| call.command(&self.script)).collect();
        let mut answers = self.ask(commands).await?;
        let forgotten: Vec<usize> =
            (0..answers.len()).filter(|index| is_forgotten(&answers[*index])).collect();
        if !forgotten.is_empty() {
            self.load().await?;
            let commands: Vec<Cmd> =
                forgotten.iter().map(|index| calls[*index].command(&self.script)).collect();
            for (index, answer) in forgotten.into_iter().zip(self.ask(commands).await?) {
                answers[index] = answer;
            }
        }
        answers.into_iter().map(numbers).collect()
    }

    /// Leaves the script with the server.
    async fn load(&mut self) -> Result<(), Error> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        match self.ask([load]).await?.pop() {
            Some(Value::BulkString(name)) => {
                self.script = String::from_utf8(name).map_err(|_| Error::Unexpected)?;
                Ok(())
            }
            Some(Value::ServerError(error)) => Err(Error::Refused(error.code().to_owned())),
            Some(_) | None => Err(Error::Unexpected),
        }
    }

    async fn ask(&mut self, commands: impl IntoIterator<Item = Cmd>) -> Result<Vec<Value>, Error> {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.add_command(command);
        }
        let count = pipeline.len();
        tokio::select! {
            // First, since the answer may have come with the end.
            biased;
            answers = self.redis.send_packed_commands(&pipeline, 0, count) => {
                let answers = answers.map_err(Error::Protocol)?;
                if answers.len() == count { Ok(answers) } else { Err(Error::Unexpected) }
            }
            () = &mut self.driver => Err(Error::Closed),
        }
    }
}

/// The server has lost the script since it was left there.
fn is_forgotten(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

fn numbers(answer: Value) -> Result<Vec<i64>, Error> {
    match answer {
        Value::Array(values) => values.iter().map(number).collect(),
        Value::ServerError(error) => Err(Error::Refused(error.code().to_owned())),
        _ => Err(Error::Unexpected),
    }
}

fn number(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(Error::Unexpected),
    }
}
