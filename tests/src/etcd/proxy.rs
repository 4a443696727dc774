//! A proxy between a client and a server that loses answers and connections on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy, which ends with the runtime.
pub struct Proxy {
    port: u16,
    control: Arc<Control>,
    cut: watch::Sender<u64>,
}

#[derive(Default)]
struct Control {
    /// Answers do not come back.
    swallows: AtomicBool,
    /// Bytes of requests that were passed on.
    passed: AtomicU64,
}

impl Proxy {
    /// Starts a proxy for the server at `port` of this machine.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (control, (cut, cuts)) = (Arc::new(Control::default()), watch::channel(0));
        let shared = Arc::clone(&control);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (shared, mut cuts) = (Arc::clone(&shared), cuts.clone());
                tokio::spawn(async move {
                    cuts.mark_unchanged();
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        () = pass(from_client, to_server, &shared, false) => {}
                        () = pass(from_server, to_client, &shared, true) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { port, control, cut }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on answers are lost, or not.
    pub fn swallow(&self, answers: bool) {
        self.control.swallows.store(answers, Ordering::SeqCst);
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Bytes of requests that were passed on.
    pub fn passed(&self) -> u64 {
        self.control.passed.load(Ordering::SeqCst)
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, control: &Control, is_answer: bool) {
    let mut buffer = vec![0; 65536];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if is_answer && control.swallows.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
        if !is_answer {
            control.passed.fetch_add(len as u64, Ordering::SeqCst);
        }
    }
}
