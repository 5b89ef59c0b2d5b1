//! One connection through the proxy, from its first byte until either side ends it or a fault does.

use std::ops::ControlFlow;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::{
    Fault, Shared,
    message::{Messages, Statements},
};

const CHUNK_BYTES: usize = 64 * 1024;

/// What becomes of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    Pass,
    /// The next one is dropped, and with it the connection.
    Swallow,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// One side closed it.
    Closed,
    /// A fault cut it.
    Cut,
}

/// Carries bytes both ways until either side closes or a fault cuts. A cut comes without a farewell, as when a machine is
/// gone.
pub(super) async fn carry(client: TcpStream, server: TcpStream, number: u64, shared: &Shared) {
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answers = watch::Sender::new(Answers::Pass);
    let mut weather = shared.weather.subscribe();
    let ended = tokio::select! {
        ended = questions(&mut from_client, &mut to_server, shared, &answers) => ended,
        ended = replies(&mut from_server, &mut to_client, shared, answers.subscribe()) => ended,
        _ = weather.wait_for(|weather| number <= weather.cut_up_to) => Ended::Cut,
    };
    if ended == Ended::Cut {
        for stream in [to_client.as_ref(), to_server.as_ref()] {
            let _ = stream.set_zero_linger();
        }
    }
}

async fn questions(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
    answers: &watch::Sender<Answers>,
) -> Ended {
    let (mut messages, mut statements) = (Messages::default(), Statements::default());
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        messages.push(&chunk[..length]);
        while let Some(whole) = messages.next() {
            if fault(&statements.executed(&whole), shared, answers).is_break() {
                return Ended::Cut;
            }
            pass(shared).await;
            if to.write_all(&whole).await.is_err() {
                return Ended::Closed;
            }
        }
    }
    Ended::Closed
}

fn fault(statement: &str, shared: &Shared, answers: &watch::Sender<Answers>) -> ControlFlow<()> {
    match shared.spring(statement) {
        None => ControlFlow::Continue(()),
        Some(Fault::CutBefore) => {
            shared.has_sprung();
            ControlFlow::Break(())
        }
        Some(Fault::SwallowReply) => {
            answers.send_replace(Answers::Swallow);
            ControlFlow::Continue(())
        }
    }
}

async fn replies(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
    answers: watch::Receiver<Answers>,
) -> Ended {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        // The program waits for each answer before it speaks again: what arrives now answers what it said last.
        let answers = *answers.borrow();
        match answers {
            Answers::Pass => {}
            Answers::Swallow => {
                shared.has_sprung();
                return Ended::Cut;
            }
        }
        pass(shared).await;
        if to.write_all(&chunk[..length]).await.is_err() {
            return Ended::Closed;
        }
    }
    Ended::Closed
}

/// Returns unless the weather keeps everything where it is.
async fn pass(shared: &Shared) {
    let mut weather = shared.weather.subscribe();
    // The proxy holds the sender for as long as this runs.
    let _ = weather.wait_for(|weather| !weather.is_stalled).await;
}
