//! A blocking client of a router's API.

mod records;
mod way;

pub use way::{Connect, Stream};

use crate::api::{
    AcquireEndpoints, ApiError, AttachInterface, Capture, CaptureEnd, ChainDetail, ChainInfo, ChainStep,
    ConfineEndpoint, ConnectionInfo, ContextInfo, ControlChain, CreateEndpoint, EndLingering, EndedDevices,
    EndpointInfo, Events, FailedRequest, FaultsText, MoveDevices, MovedDevices, PathProbe, PoolInfo, ProbePath,
    ReleaseEndpoints, SetChainSteps, SetMeshKey, SetPeer, StartCapture, Stats, Status, TraceChain, Tunnel,
};
use crate::{Endpoint, Host, Name, Network, Peer, PeerEndpoint, Peers, Pool, StateError, TunnelKey};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use way::OwnSocket;

/// Client of a router, whose answers are trusted.
#[derive(Clone, Debug)]
pub struct Client {
    way: Arc<dyn Connect>,
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No router listens there, or this user may not reach it.
    #[error("{}", unreachable(.socket, .source))]
    Unreachable {
        /// The API socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The router's gateway on another machine.
    #[error("{gateway}: {message}")]
    Elsewhere {
        /// Base URL of the gateway.
        gateway: String,
        /// The cause, and the remedy.
        message: String,
    },
    /// Another user could be behind the socket.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another user's process listens there.
    #[error(
        "{} is served by user {owner}, who is neither you nor root: nothing was sent; \
         name the state directory of a router of your own with --state-dir", .socket.display()
    )]
    Foreign {
        /// The API socket.
        socket: PathBuf,
        /// The user of the listening process.
        owner: u32,
    },
    /// The router says no.
    #[error("{message}")]
    Refused {
        /// HTTP status code.
        status: u16,
        /// The router's own words.
        message: String,
    },
    /// The answer is not one of a router of this version.
    #[error(
        "the router's answer makes no sense ({0}): if rdmesh was updated, restart it with `rdmesh down` and `rdmesh up`"
    )]
    Protocol(String),
    /// The connection broke.
    #[error("the router ended before it answered ({0}): start it again with `rdmesh up`; its log may say why")]
    Broken(hyper::Error),
    /// No answer in time.
    #[error("the router does not answer: its log may say why (`router.log` in its state directory)")]
    TimedOut,
}

impl Client {
    /// A client of the router at `socket`; connects when the first request is made. The socket and its directory have to belong to
    /// this process's user, or to root.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::by(OwnSocket::new(socket.into()))
    }

    /// A client of the router to which `way` leads.
    pub fn by(way: impl Connect) -> Self {
        Self { way: Arc::new(way) }
    }

    /// The router as a whole.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// All networks.
    pub fn networks(&self) -> Result<Vec<Network>, ClientError> {
        self.get("/v1/networks")
    }

    /// All endpoints.
    pub fn endpoints(&self) -> Result<Vec<EndpointInfo>, ClientError> {
        self.get("/v1/endpoints")
    }

    /// The endpoint `name` of `network`.
    pub fn endpoint(&self, network: &Name, name: &Name) -> Result<EndpointInfo, ClientError> {
        self.get(&format!("/v1/endpoints/{network}/{name}"))
    }

    /// The endpoints of `network`, on all hosts of the cluster.
    pub fn network_endpoints(&self, network: &Name) -> Result<Vec<Endpoint>, ClientError> {
        self.get(&format!("/v1/networks/{network}/endpoints"))
    }

    /// Makes an endpoint.
    pub fn create_endpoint(&self, request: &CreateEndpoint) -> Result<EndpointInfo, ClientError> {
        self.call(Method::POST, "/v1/endpoints", Some(request))
    }

    /// Removes an endpoint; returns what it was.
    pub fn remove_endpoint(&self, network: &Name, name: &Name) -> Result<EndpointInfo, ClientError> {
        self.call(Method::DELETE, &format!("/v1/endpoints/{network}/{name}"), NOTHING)
    }

    /// Removes the endpoint `name` of `network`, if it is there.
    pub fn clear_endpoint(&self, network: &Name, name: &Name) -> Result<(), ClientError> {
        match self.remove_endpoint(network, name) {
            Ok(_) | Err(ClientError::Refused { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// All pools.
    pub fn pools(&self) -> Result<Vec<PoolInfo>, ClientError> {
        self.get("/v1/pools")
    }

    /// Holds the processes of a control group to the addresses of an acquired endpoint.
    pub fn confine_endpoint(
        &self,
        network: &Name,
        name: &Name,
        request: &ConfineEndpoint,
    ) -> Result<EndpointInfo, ClientError> {
        self.call(Method::PUT, &format!("/v1/endpoints/{network}/{name}/cgroup"), Some(request))
    }

    /// Makes a pool, or changes one.
    pub fn set_pool(&self, pool: &Pool) -> Result<PoolInfo, ClientError> {
        self.call_about(MANY.max(pool.size as usize), Method::PUT, "/v1/pools", Some(pool))
    }

    /// Removes a pool with its endpoints; returns what it was.
    pub fn remove_pool(&self, network: &Name, name: &Name) -> Result<PoolInfo, ClientError> {
        self.call_about(MANY, Method::DELETE, &format!("/v1/pools/{network}/{name}"), NOTHING)
    }

    /// Takes endpoints from a pool.
    pub fn acquire_endpoints(
        &self,
        network: &Name,
        pool: &Name,
        request: &AcquireEndpoints,
    ) -> Result<Vec<EndpointInfo>, ClientError> {
        self.call(Method::POST, &format!("/v1/pools/{network}/{pool}/acquire"), Some(request))
    }

    /// Gives endpoints back to their pool; returns its state.
    pub fn release_endpoints(
        &self,
        network: &Name,
        pool: &Name,
        request: &ReleaseEndpoints,
    ) -> Result<PoolInfo, ClientError> {
        let path = format!("/v1/pools/{network}/{pool}/release");
        self.call_about(request.names.len(), Method::POST, &path, Some(request))
    }

    /// Moves the devices of an endpoint to another worker.
    pub fn move_devices(&self, network: &Name, name: &Name, to: &MoveDevices) -> Result<MovedDevices, ClientError> {
        self.call(Method::PUT, &format!("/v1/endpoints/{network}/{name}/worker"), Some(to))
    }

    /// Ends devices of an endpoint that have outlived their programs.
    pub fn end_lingering(
        &self,
        network: &Name,
        name: &Name,
        which: &EndLingering,
    ) -> Result<EndedDevices, ClientError> {
        self.call(Method::POST, &format!("/v1/endpoints/{network}/{name}/lingering/end"), Some(which))
    }

    /// All groups of managed queues.
    pub fn chains(&self) -> Result<Vec<ChainInfo>, ClientError> {
        self.get("/v1/chains")
    }

    /// A group of managed queues, with its queues.
    pub fn chain(&self, network: &Name, name: &Name, device: u32, group: u32) -> Result<ChainDetail, ClientError> {
        self.get(&format!("/v1/endpoints/{network}/{name}/chains/{device}/{group}"))
    }

    /// Records the requests that a group of managed queues executes, and returns those that were recorded.
    pub fn trace_chain(&self, network: &Name, name: &Name, trace: &TraceChain) -> Result<Vec<ChainStep>, ClientError> {
        self.call(Method::POST, &format!("/v1/endpoints/{network}/{name}/chain-trace"), Some(trace))
    }

    /// Measures the path from an endpoint to another by probes.
    pub fn probe_path(&self, network: &Name, name: &Name, order: &ProbePath) -> Result<Vec<PathProbe>, ClientError> {
        self.call(Method::POST, &format!("/v1/endpoints/{network}/{name}/probe"), Some(order))
    }

    /// Stops, resumes or ends a group of managed queues.
    pub fn control_chain(
        &self,
        network: &Name,
        name: &Name,
        order: &ControlChain,
    ) -> Result<ControlChain, ClientError> {
        self.call(Method::POST, &format!("/v1/endpoints/{network}/{name}/chain"), Some(order))
    }

    /// Sets the budget of steps of an endpoint's chains.
    pub fn set_chain_steps(
        &self,
        network: &Name,
        name: &Name,
        steps: &SetChainSteps,
    ) -> Result<EndpointInfo, ClientError> {
        self.call(Method::PUT, &format!("/v1/endpoints/{network}/{name}/chain-steps"), Some(steps))
    }

    /// The other hosts.
    pub fn peers(&self) -> Result<Peers, ClientError> {
        self.get("/v1/peers")
    }

    /// Adds another host, or changes its address or its key.
    pub fn set_peer(&self, host: &Name, address: IpAddr, key: Option<TunnelKey>) -> Result<Host, ClientError> {
        self.call(Method::PUT, &format!("/v1/peers/{host}"), Some(&SetPeer { address, key }))
    }

    /// The tunnel to other hosts.
    pub fn tunnel(&self) -> Result<Tunnel, ClientError> {
        self.get("/v1/tunnel")
    }

    /// Changes the secret of the mesh.
    pub fn set_mesh_key(&self, key: TunnelKey) -> Result<Tunnel, ClientError> {
        self.call(Method::PUT, "/v1/tunnel/key", Some(&SetMeshKey { key }))
    }

    /// Replaces the key pair of the router's host.
    pub fn rotate_key(&self) -> Result<Tunnel, ClientError> {
        self.call(Method::POST, "/v1/tunnel/rotation", NOTHING)
    }

    /// Removes another host with its endpoints; returns what it was.
    pub fn remove_peer(&self, host: &Name) -> Result<Peer, ClientError> {
        self.call(Method::DELETE, &format!("/v1/peers/{host}"), NOTHING)
    }

    /// Adds an endpoint of another host.
    pub fn add_peer_endpoint(&self, host: &Name, endpoint: &PeerEndpoint) -> Result<PeerEndpoint, ClientError> {
        self.call(Method::POST, &format!("/v1/peers/{host}/endpoints"), Some(endpoint))
    }

    /// Removes the endpoint of another host that has `address`.
    pub fn remove_peer_endpoint(
        &self,
        host: &Name,
        network: &Name,
        address: IpAddr,
    ) -> Result<PeerEndpoint, ClientError> {
        self.call(Method::DELETE, &format!("/v1/peers/{host}/endpoints/{network}/{address}"), NOTHING)
    }

    /// The host's interfaces that are part of `network`.
    pub fn interfaces(&self, network: &Name) -> Result<Vec<String>, ClientError> {
        self.get(&format!("/v1/networks/{network}/interfaces"))
    }

    /// Makes an interface of the host a part of `network`; returns all that are.
    pub fn attach_interface(&self, network: &Name, request: &AttachInterface) -> Result<Vec<String>, ClientError> {
        self.call(Method::POST, &format!("/v1/networks/{network}/interfaces"), Some(request))
    }

    /// Gives an interface of `network` back to the host; returns those that stay.
    pub fn detach_interface(&self, network: &Name, interface: &str) -> Result<Vec<String>, ClientError> {
        self.call(Method::DELETE, &format!("/v1/networks/{network}/interfaces/{interface}"), NOTHING)
    }

    /// The injected faults.
    pub fn faults(&self) -> Result<FaultsText, ClientError> {
        self.get("/v1/faults")
    }

    /// Sets the injected faults.
    pub fn set_faults(&self, faults: &FaultsText) -> Result<FaultsText, ClientError> {
        self.call(Method::PUT, "/v1/faults", Some(faults))
    }

    /// The latest events; after the one of number `after`, where that is given: then it waits for some.
    pub fn events(&self, after: Option<u64>) -> Result<Events, ClientError> {
        match after {
            None => self.get("/v1/events"),
            Some(after) => self.get(&format!("/v1/events/{after}")),
        }
    }

    /// Begins to capture an endpoint's packets.
    pub fn start_capture(&self, request: &StartCapture) -> Result<Capture, ClientError> {
        self.call(Method::POST, "/v1/captures", Some(request))
    }

    /// The packets captured since the last read: the next part of a pcap file.
    pub fn read_capture(&self, id: u32) -> Result<Vec<u8>, ClientError> {
        Ok(self.ask(TIMEOUT, Method::GET, &format!("/v1/captures/{id}"), NOTHING)?.into())
    }

    /// Ends a capture.
    pub fn stop_capture(&self, id: u32) -> Result<CaptureEnd, ClientError> {
        self.call(Method::DELETE, &format!("/v1/captures/{id}"), NOTHING)
    }

    /// All identifiers of rdma_cm.
    pub fn connections(&self) -> Result<Vec<ConnectionInfo>, ClientError> {
        self.get("/v1/connections")
    }

    /// All open device contexts.
    pub fn contexts(&self) -> Result<Vec<ContextInfo>, ClientError> {
        self.get("/v1/contexts")
    }

    /// Recent failed requests of programs, the latest at the end.
    pub fn failed_requests(&self) -> Result<Vec<FailedRequest>, ClientError> {
        self.get("/v1/failed-requests")
    }

    /// All counters.
    pub fn stats(&self) -> Result<Stats, ClientError> {
        self.get("/v1/stats")
    }

    /// Tells the router to remove everything and end; it is still ending when this returns.
    pub fn shutdown(&self) -> Result<Status, ClientError> {
        self.call(Method::POST, "/v1/shutdown", NOTHING)
    }

    /// Answer to a GET request for a path of the API, such as `/v1/status`.
    pub fn read(&self, path: &str) -> Result<serde_json::Value, ClientError> {
        self.get(path)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, NOTHING)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        self.call_about(1, method, path, body)
    }

    /// A request about a number of endpoints, for which it may take so many times longer.
    fn call_about<T: DeserializeOwned>(
        &self,
        endpoints: usize,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let patience = TIMEOUT + OF_EACH * u32::try_from(endpoints).unwrap_or(u32::MAX);
        serde_json::from_slice(&self.ask(patience, method, path, body)?).map_err(protocol)
    }

    /// Makes a request; returns the body of its answer.
    fn ask(
        &self,
        patience: Duration,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Bytes, ClientError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(protocol)?.unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "rdmesh")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(protocol)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(protocol)?;
        let exchange = async { tokio::time::timeout(patience, self.pass_on(request)).await };
        let (head, body) = runtime.block_on(exchange).map_err(|_| ClientError::TimedOut)??.into_parts();
        let status = head.status;
        if status.is_success() {
            return Ok(body);
        }
        let message = match serde_json::from_slice::<ApiError>(&body) {
            Ok(ApiError { error }) => error,
            Err(_) => format!("{status}: {}", String::from_utf8_lossy(&body)),
        };
        Err(ClientError::Refused { status: status.as_u16(), message })
    }

    /// Makes `request` as it is: for what passes requests of others on.
    pub async fn pass_on(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, ClientError> {
        let stream = self.way.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(protocol)?;
        // Ends with the sender.
        tokio::spawn(connection);
        let failed = |error: hyper::Error| if error.is_parse() { protocol(error) } else { self.way.broken(error) };
        let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
        Ok(Response::from_parts(head, body.collect().await.map_err(failed)?.to_bytes()))
    }
}

fn protocol(error: impl std::fmt::Display) -> ClientError {
    ClientError::Protocol(error.to_string())
}

fn unreachable(socket: &Path, source: &io::Error) -> String {
    let socket = socket.display();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no router is running at {socket}: start one with `rdmesh up`, or name its --state-dir")
        }
        io::ErrorKind::PermissionDenied => format!(
            "you may not talk to the router at {socket}: use `sudo`, or start your own with `rdmesh up --rootless`"
        ),
        _ => format!("the router at {socket} cannot be reached: {source}"),
    }
}

const NOTHING: Option<&()> = None;
/// Creating an endpoint takes milliseconds; a router that needs longer than this is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for each of many endpoints: their directories may be on a slow disk.
const OF_EACH: Duration = Duration::from_millis(300);
/// Endpoints of a pool whose size is not known, or was another before.
const MANY: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// The result of `GET /v1/endpoints` when a server answers with `response`.
    fn answer_with(response: &'static str) -> Result<Vec<EndpointInfo>, ClientError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let len = stream.read(&mut head).unwrap();
            assert!(head[..len].starts_with(b"GET /v1/endpoints HTTP/1.1\r\n"));
            stream.write_all(response.as_bytes()).unwrap();
            // The connection stays open until the client has had enough.
            assert_eq!(stream.read(&mut head).unwrap(), 0);
        });
        let result = Client::new(path).endpoints();
        server.join().unwrap();
        result
    }

    #[test]
    fn answers_and_refusals_are_understood() {
        assert_eq!(answer_with("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap(), []);
        let refusal = answer_with("HTTP/1.1 409 Conflict\r\ncontent-length: 15\r\n\r\n{\"error\":\"why\"}");
        assert!(matches!(refusal, Err(ClientError::Refused { status: 409, message }) if message == "why"));
        let nonsense = answer_with("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7");
        assert!(matches!(nonsense, Err(ClientError::Protocol(_))));
        assert!(matches!(answer_with("SMTP ready\r\n\r\n"), Err(ClientError::Protocol(_))));
    }

    #[test]
    fn a_router_that_ends_while_it_answers_is_not_taken_for_another_version() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || drop(listener.accept()));
        let result = Client::new(path).status();
        server.join().unwrap();
        assert!(matches!(result, Err(ClientError::Broken(_))), "{result:?}");
    }

    #[test]
    fn a_router_in_a_directory_that_others_may_write_is_told_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("api.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let result = Client::new(directory.path().join("api.sock")).status();
        assert!(matches!(result, Err(ClientError::State(StateError::Writable { .. }))), "{result:?}");
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_missing_router_is_explained() {
        let error = Client::new("/nonexistent/api.sock").status().unwrap_err();
        assert!(error.to_string().contains("rdmesh up"), "{error}");
    }
}
