//! Members of an etcd cluster: connections, user, and the change to another member where one fails.

use crate::config::{ConfigError, EtcdConfig};
use crate::fault::Fault;
use crate::proto::{Authenticate, Authenticated};
use prost::Message;
use rdmesh_fabric::store::{Revision, StoreError};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The members of a cluster. One of them is asked until it fails.
pub(crate) struct Members {
    members: Vec<Member>,
    current: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    timeout: Duration,
}

struct Member {
    endpoint: Endpoint,
    channel: Mutex<Option<Channel>>,
}

/// Whether a request may be executed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may: another member is asked where the first one's answer was lost.
    Repeatable,
    /// It may not.
    Once,
}

/// A request: its path, its message, and the revision that it is about.
pub(crate) struct Call<Q> {
    pub(crate) path: &'static str,
    pub(crate) message: Q,
    pub(crate) kind: Kind,
    pub(crate) revision: Revision,
    /// Whether the answer is the first message of a stream.
    pub(crate) is_stream: bool,
}

/// Failure of a request to one member.
enum Failure {
    /// Another member, or the same one later, may do better.
    Passing(StoreError),
    Final(StoreError),
}

impl<Q> Call<Q> {
    /// A request that may be repeated.
    pub(crate) fn new(path: &'static str, message: Q) -> Self {
        Self { path, message, kind: Kind::Repeatable, revision: Revision::default(), is_stream: false }
    }
}

impl Members {
    /// The members that `config` names. Nothing is connected yet.
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let tls = config.tls().map(|tls| -> Result<_, ConfigError> {
            let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.ca)?));
            Ok(match &tls.identity {
                Some((certificate, key)) => config.identity(Identity::from_pem(read(certificate)?, read(key)?)),
                None => config,
            })
        });
        let tls = tls.transpose()?;
        let member = |url: String| {
            let invalid = |_| ConfigError::Host(url.clone());
            let endpoint = Endpoint::from_shared(url.clone()).map_err(invalid)?.connect_timeout(config.timeout());
            // A watch has to notice a member that has vanished. etcd refuses more than one ping in five seconds.
            let endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING_TIMEOUT);
            let endpoint = endpoint.keep_alive_while_idle(true);
            let secure = tls.clone().map(|tls| endpoint.clone().tls_config(tls)).transpose();
            let endpoint = secure.map_err(|_| ConfigError::Tls)?.unwrap_or(endpoint);
            Ok(Member { endpoint, channel: Mutex::default() })
        };
        Ok(Self {
            members: config.members().into_iter().map(member).collect::<Result<_, _>>()?,
            current: AtomicUsize::new(0),
            user: config.user().cloned(),
            token: Mutex::default(),
            timeout: config.timeout(),
        })
    }

    /// Opens a stream to the current member, whose index is returned too. Where that fails the next call asks another one.
    pub(crate) async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(usize, Streaming<A>), StoreError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (index, channel) = self.connected().await?;
        self.authenticate(&channel).await.map_err(|status| StoreError::Unavailable(status.to_string()))?;
        let answers = self.open(channel, path, requests).await;
        answers
            .map(|answers| (index, answers))
            .map_err(|status| self.fail(index, Fault::of(&status, Revision::default())))
    }

    /// After a failure of a stream: another member is asked from now on.
    pub(crate) fn fail(&self, index: usize, fault: Fault) -> StoreError {
        match fault {
            Fault::Answer(error) => error,
            Fault::Token => {
                *lock(&self.token) = None;
                StoreError::Unavailable("the token has expired".to_owned())
            }
            Fault::Lost(why) => {
                self.leave(index);
                StoreError::Unavailable(why)
            }
        }
    }

    /// Makes a request, of one member after the other.
    pub(crate) async fn call<Q, A>(&self, call: Call<Q>) -> Result<A, StoreError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut last = StoreError::Unavailable("no member".to_owned());
        for attempt in 0..ROUNDS * self.members.len() {
            // The first failure is met at once, as when a member was killed; after a round, all of them may be electing a leader.
            if attempt >= self.members.len() {
                sleep(PAUSE).await;
            }
            match self.attempt(&call).await {
                Err(Failure::Passing(error)) => last = error,
                Err(Failure::Final(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
        }
        Err(last)
    }

    /// Makes a request of the current member.
    async fn attempt<Q, A>(&self, call: &Call<Q>) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (index, channel) = self.connected().await.map_err(Failure::Passing)?;
        let (status, was_sent) = match self.authenticate(&channel).await {
            Err(status) => (status, false),
            Ok(()) => match self.ask(channel, call).await {
                Err(status) => (status, true),
                Ok(answer) => return Ok(answer),
            },
        };
        Err(match Fault::of(&status, call.revision) {
            Fault::Lost(why) if was_sent && call.kind == Kind::Once => {
                self.leave(index);
                Failure::Final(StoreError::OutcomeUnknown(why))
            }
            Fault::Answer(error) => Failure::Final(error),
            fault => Failure::Passing(self.fail(index, fault)),
        })
    }

    async fn ask<Q, A>(&self, channel: Channel, call: &Call<Q>) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        if !call.is_stream {
            return self.unary(channel, call.path, call.message.clone()).await;
        }
        let mut answers: Streaming<A> = self.open(channel, call.path, tokio_stream::once(call.message.clone())).await?;
        let first = timeout(self.timeout, answers.message()).await;
        let first = first.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))?;
        first.ok_or_else(|| Status::unavailable("the stream has ended"))
    }

    /// A connection to the current member; where there can be none, the next one becomes current.
    async fn connected(&self) -> Result<(usize, Channel), StoreError> {
        let index = self.current.load(Ordering::Relaxed);
        let member = &self.members[index];
        if let Some(channel) = lock(&member.channel).clone() {
            return Ok((index, channel));
        }
        match timeout(self.timeout, member.endpoint.connect()).await {
            Ok(Ok(channel)) => {
                *lock(&member.channel) = Some(channel.clone());
                Ok((index, channel))
            }
            failed => {
                self.leave(index);
                let why = failed.map_or("no answer".to_owned(), |failed| failed.map_or_else(causes, |_| String::new()));
                Err(StoreError::Unavailable(format!("{}: {why}", member.endpoint.uri())))
            }
        }
    }

    /// The member `index` is not asked any more, until the others have failed too.
    fn leave(&self, index: usize) {
        *lock(&self.members[index].channel) = None;
        let next = (index + 1) % self.members.len();
        // Another request may have left it already.
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Gets a token, if there is a user and none is known.
    async fn authenticate(&self, channel: &Channel) -> Result<(), Status> {
        let Some((name, password)) = self.user.as_ref().filter(|_| lock(&self.token).is_none()) else { return Ok(()) };
        let request = Authenticate { name: name.clone(), password: password.clone() };
        let answer: Result<Authenticated, Status> = self.unary(channel.clone(), AUTHENTICATE, request).await;
        let token = match answer {
            // A cluster that knows no users lets everyone in.
            Err(status) if status.code() == Code::FailedPrecondition => return Ok(()),
            answer => answer?.token,
        };
        let token = token.parse().map_err(|_| Status::internal("the token is no text"))?;
        *lock(&self.token) = Some(token);
        Ok(())
    }

    async fn unary<Q, A>(&self, channel: Channel, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.in_time(async {
            let mut client = ready(channel).await?;
            let codec = ProstCodec::<Q, A>::default();
            client.unary(self.request(message), PathAndQuery::from_static(path), codec).await
        })
        .await
    }

    async fn open<Q, A>(
        &self,
        channel: Channel,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.in_time(async {
            let mut client = ready(channel).await?;
            let codec = ProstCodec::<Q, A>::default();
            client.streaming(self.request(requests), PathAndQuery::from_static(path), codec).await
        })
        .await
    }

    /// The answer, if it comes within the time that a member may take.
    async fn in_time<A>(&self, answer: impl Future<Output = Result<tonic::Response<A>, Status>>) -> Result<A, Status> {
        let answer = timeout(self.timeout, answer).await;
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))).map(tonic::Response::into_inner)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = lock(&self.token).clone() {
            request.metadata_mut().insert("token", token);
        }
        // A member that has lost the others must say so rather than keep a watch waiting.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }
}

/// A client on `channel`, once that takes requests.
async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
    client.ready().await.map_err(|error| Status::unavailable(causes(error)))?;
    Ok(client)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })
}

/// An error with its causes: tonic's own text is only "transport error".
fn causes(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Number of times that each member is asked.
const ROUNDS: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);
const PING: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer is a page of a listing, or what changed at once: far less.
const MAX_ANSWER: usize = 64 << 20;
