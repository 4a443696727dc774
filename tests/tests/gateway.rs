//! The API on TCP: who may ask, and for what. Callers are curl with certificates that openssl makes, as an operator would.

use rdmesh_tests::{Lab, Program, until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// The authority of a gateway, and another one.
struct Authorities {
    folder: TempDir,
}

impl Authorities {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        for name in ["ca", "stranger"] {
            let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
            openssl(folder.path(), &new_key(&format!("/CN={name}"), &key, &certificate));
        }
        Self { folder }
    }
}

/// A router, a gateway to it, and authorities.
struct Site {
    folder: TempDir,
    url: String,
    gateway: Program,
    lab: Lab,
}

impl Site {
    fn start() -> Self {
        Self::start_with(Authorities::new(), &[])
    }

    /// A gateway with these options, too, of which files are in the folder of `authorities`.
    fn start_with(authorities: Authorities, options: &[(&str, &str)]) -> Self {
        let (folder, lab) = (authorities.folder, Lab::start());
        certificate(folder.path(), "host", "ca", "/CN=host", "subjectAltName=IP:127.0.0.1");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let mut command = lab.rdmesh();
        command.args(["gateway", "--listen", "127.0.0.1:0", "--cert", &file("host.pem"), "--key", &file("host.key")]);
        command.args(["--client-ca", &file("ca.pem")]);
        for (option, name) in options {
            command.args([option, &*file(name)]);
        }
        let mut gateway = Program::start(command);
        let url = gateway.next_line(LIMIT);
        Self { folder, url, gateway, lab }
    }

    fn admit(&self, name: &str, authority: &str, organization: &str) {
        admit(self.folder.path(), name, authority, organization);
    }

    /// The answer to a request by curl with the certificate of `name`: a status, 0 where there is no connection, and JSON.
    fn ask(&self, name: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let file = |name: &str| self.folder.path().join(name);
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--path-as-is",
            "--max-time",
            "20",
            "--write-out",
            "\n%{http_code}",
            "--request",
            method,
        ]);
        curl.arg("--cacert").arg(file("ca.pem")).arg(format!("{}{path}", self.url.trim_end_matches('/')));
        if !name.is_empty() {
            curl.arg("--cert").arg(file(&format!("{name}.pem"))).arg("--key").arg(file(&format!("{name}.key")));
        }
        if let Some(body) = body {
            curl.args(["--data", &body.to_string()]);
        }
        let output = String::from_utf8(curl.output().expect("curl").stdout).expect("text");
        let (text, status) = output.rsplit_once('\n').expect("a status");
        (status.parse().expect("a status"), serde_json::from_str(text).unwrap_or_default())
    }

    #[track_caller]
    fn expect(&self, status: u16, name: &str, method: &str, path: &str, body: Option<Value>) -> Value {
        let (said, answer) = self.ask(name, method, path, body);
        assert_eq!(said, status, "{name:?} {method} {path}: {answer}; the gateway: {}", self.gateway.text());
        answer
    }
}

fn openssl(folder: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").current_dir(folder).args(arguments).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A revocation list `crl.pem` of the authority, with the certificates of these.
fn revoke(folder: &Path, names: &[&str]) {
    let config = "[ca]\ndefault_ca = own\n[own]\ndatabase = index\ncrlnumber = number\ndefault_md = sha256\ndefault_crl_days = 2\n";
    for (file, text) in [("config", config), ("index", ""), ("number", "01\n")] {
        std::fs::write(folder.join(file), text).expect("a file");
    }
    let by_authority = ["ca", "-config", "config", "-keyfile", "ca.key", "-cert", "ca.pem"];
    for name in names {
        openssl(folder, &[&by_authority[..], &["-revoke", &format!("{name}.pem")]].concat());
    }
    openssl(folder, &[&by_authority[..], &["-gencrl", "-out", "crl.pem"]].concat());
}

/// Arguments for a new key and a certificate of it.
fn new_key<'a>(subject: &'a str, key: &'a str, certificate: &'a str) -> Vec<&'a str> {
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    [&["req", "-x509"][..], &curve, &["-days", "2", "-subj", subject, "-keyout", key, "-out", certificate]].concat()
}

/// A certificate of `authority` for clients, for the person `name` with an organization.
fn admit(folder: &Path, name: &str, authority: &str, organization: &str) {
    certificate(folder, name, authority, &format!("/CN={name}/O={organization}"), "extendedKeyUsage=clientAuth");
}

fn certificate(folder: &Path, name: &str, authority: &str, subject: &str, extension: &str) {
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let (ca, ca_key) = (format!("{authority}.pem"), format!("{authority}.key"));
    let mut arguments = new_key(subject, &key, &certificate);
    arguments.extend([
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-addext",
        extension,
    ]);
    openssl(folder, &arguments);
}

#[test]
fn only_callers_with_a_certificate_and_a_role_are_answered() {
    let site = Site::start();
    site.admit("ann", "ca", "rdmesh:reader");
    site.admit("nobody", "ca", "Example");
    site.admit("mallory", "stranger", "rdmesh:admin");
    site.expect(200, "ann", "GET", "/v1/status", None);
    let refused = site.expect(403, "nobody", "GET", "/v1/status", None);
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("organization")), "{refused}");
    // No connection.
    site.expect(0, "", "GET", "/v1/status", None);
    site.expect(0, "mallory", "GET", "/v1/status", None);
    // That of a server is none of a client.
    certificate(site.folder.path(), "server", "ca", "/CN=server/O=rdmesh:admin", "extendedKeyUsage=serverAuth");
    site.expect(0, "server", "GET", "/v1/status", None);
    site.expect(200, "ann", "GET", "/v1/openapi.json", None);
}

#[test]
fn roles_may_do_what_they_are_for() {
    let site = Site::start();
    for (name, organization) in [("ann", "rdmesh:admin"), ("rita", "rdmesh:reader"), ("tom", "rdmesh:tenant:acme")] {
        site.admit(name, "ca", organization);
    }
    site.expect(200, "ann", "PUT", "/v1/tenants", Some(json!({"name": "acme"})));
    for (network, tenant) in [("own", "acme"), ("other", "default")] {
        let network = json!({"name": network, "subnets": ["10.7.0.0/24"], "tenant": tenant});
        site.expect(201, "ann", "POST", "/v1/networks", Some(network));
    }
    let endpoint = |network: &str| Some(json!({"name": "e", "network": network}));
    site.expect(403, "rita", "POST", "/v1/endpoints", endpoint("own"));
    site.expect(403, "tom", "POST", "/v1/endpoints", endpoint("other"));
    site.expect(201, "tom", "POST", "/v1/endpoints", endpoint("own"));
    site.expect(201, "ann", "POST", "/v1/endpoints", endpoint("other"));
    let seen = |name: &str, path: &str| site.expect(200, name, "GET", path, None).as_array().map_or(0, Vec::len);
    for path in ["/v1/endpoints", "/v1/networks"] {
        assert_eq!((seen("tom", path), seen("rita", path), seen("ann", path)), (1, 2, 2), "{path}");
    }
    site.expect(403, "tom", "GET", "/v1/endpoints/own/../other/e", None);
    site.expect(403, "tom", "DELETE", "/v1/endpoints/other/e", None);
    site.expect(200, "tom", "DELETE", "/v1/endpoints/own/e", None);
    // The router's own words come through.
    site.expect(404, "tom", "DELETE", "/v1/endpoints/own/e", None);
    // Orders are logged with the caller's name.
    let log = std::fs::read_to_string(site.lab.dir().join("router.log")).expect("the log");
    let order = log.lines().find(|line| line.contains("POST /v1/endpoints") && line.contains("tom"));
    assert!(order.is_some_and(|line| line.contains("status=201")), "{log}");
    // The gateway's has them, too.
    assert!(site.gateway.text().contains("tom"), "{}", site.gateway.text());
}

/// A resumed session would outlive the term of the caller's certificate.
#[test]
fn sessions_are_not_resumed() {
    let site = Site::start();
    site.admit("ann", "ca", "rdmesh:reader");
    let address = site.url.trim_start_matches("https://").trim_end_matches('/');
    for version in ["-tls1_2", "-tls1_3"] {
        let mut client = Command::new("openssl");
        client.current_dir(site.folder.path()).args(["s_client", "-connect", address, version, "-reconnect"]);
        client.args(["-cert", "ann.pem", "-key", "ann.key", "-CAfile", "ca.pem"]).stdin(Stdio::null());
        let output = String::from_utf8_lossy(&client.output().expect("openssl").stdout).into_owned();
        let count = |word: &str| output.lines().filter(|line| line.starts_with(word)).count();
        assert!(count("New, ") > 1 && count("Reused, ") == 0, "{version}: {output}");
    }
}

#[test]
fn callers_with_revoked_certificates_are_not_answered() {
    let authorities = Authorities::new();
    for name in ["ann", "rita"] {
        admit(authorities.folder.path(), name, "ca", "rdmesh:reader");
    }
    revoke(authorities.folder.path(), &["rita"]);
    let site = Site::start_with(authorities, &[("--revoked", "crl.pem")]);
    site.expect(200, "ann", "GET", "/v1/status", None);
    site.expect(0, "rita", "GET", "/v1/status", None);
}

/// As a cron job or cert-manager replaces them, while the gateway serves.
#[test]
fn replaced_files_are_in_force_and_what_cannot_be_used_is_not() {
    let authorities = Authorities::new();
    for name in ["ann", "rita"] {
        admit(authorities.folder.path(), name, "ca", "rdmesh:reader");
    }
    revoke(authorities.folder.path(), &[]);
    let site = Site::start_with(authorities, &[("--revoked", "crl.pem")]);
    site.expect(200, "rita", "GET", "/v1/status", None);
    // A connection that was admitted before ends as well.
    let address = site.url.trim_start_matches("https://").trim_end_matches('/');
    let mut kept = Command::new("openssl");
    kept.current_dir(site.folder.path()).args(["s_client", "-connect", address, "-quiet", "-CAfile", "ca.pem"]);
    let kept = kept.args(["-cert", "rita.pem", "-key", "rita.key"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut kept = kept.stderr(Stdio::null()).spawn().expect("openssl");
    let crl = site.folder.path().join("crl.pem");
    std::fs::write(&crl, "nonsense").expect("a file");
    until(LIMIT, "the gateway says what it cannot use", || site.gateway.text().contains("crl.pem").then_some(()));
    site.expect(200, "rita", "GET", "/v1/status", None);
    assert!(kept.try_wait().expect("openssl").is_none(), "nothing has changed for those who are there");
    revoke(site.folder.path(), &["rita"]);
    until(LIMIT, "she is refused", || (site.ask("rita", "GET", "/v1/status", None).0 == 0).then_some(()));
    until(LIMIT, "her connection ends", || kept.try_wait().expect("openssl"));
    site.expect(200, "ann", "GET", "/v1/status", None);
}

#[test]
fn the_command_line_asks_a_gateway() {
    let site = Site::start();
    for (name, organization) in [("ann", "rdmesh:admin"), ("tom", "rdmesh:tenant:acme")] {
        site.admit(name, "ca", organization);
    }
    site.admit("mallory", "stranger", "rdmesh:admin");
    let rdmesh = |name: &str, url: &str, arguments: &[&str]| {
        let folder = site.folder.path().join(format!("{name}.d"));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (from, to) in
            [(format!("{name}.pem"), "cert.pem"), (format!("{name}.key"), "key.pem"), ("ca.pem".into(), "ca.pem")]
        {
            std::fs::copy(site.folder.path().join(from), folder.join(to)).expect("a file");
        }
        let mut command = site.lab.rdmesh();
        // No router of this host is asked.
        command.env("RDMESH_STATE", "/nonexistent").env("RDMESH_CREDENTIALS", folder).args(["--gateway", url]);
        Program::start({
            command.args(arguments);
            command
        })
        .finish(LIMIT)
    };
    rdmesh("ann", &site.url, &["tenant", "add", "acme"]).ok();
    rdmesh("ann", &site.url, &["network", "add", "own", "--subnet", "10.7.0.0/24", "--tenant", "acme"]).ok();
    rdmesh("ann", &site.url, &["network", "add", "other", "--subnet", "10.7.0.0/24"]).ok();
    rdmesh("tom", &site.url, &["endpoint", "add", "e", "--namespace", "--net", "own"]).ok();
    let refused = rdmesh("tom", &site.url, &["endpoint", "add", "e", "--namespace", "--net", "other"]);
    assert!(!refused.status.success() && refused.text.contains("acme has no network"), "{}", refused.text);
    let given = rdmesh("ann", &site.url, &["endpoint", "add", "e", "--net", "own", "--netns", "/proc/self/ns/net"]);
    assert!(!given.status.success() && given.text.contains("only be given on its host"), "{}", given.text);
    let networks = |name: &str| rdmesh(name, &site.url, &["network", "ls"]).ok().text;
    assert!(networks("tom").contains("own") && !networks("tom").contains("other") && networks("ann").contains("other"));
    for name in ["ann", "tom"] {
        assert!(rdmesh(name, &site.url, &["ps"]).ok().text.contains("own"), "{name}");
    }
    let failures = [
        ("mallory", &*site.url, "ps", "the gateway has ended the connection"),
        ("ann", "https://127.0.0.1:1", "ps", "cannot be reached"),
        ("ann", "https://localhost:1/v1", "ps", "a gateway's URL is like"),
        ("ann", &*site.url, "down", "on a router's own host"),
    ];
    for (name, url, command, words) in failures {
        let failed = rdmesh(name, url, &[command]);
        assert!(!failed.status.success() && failed.text.contains(words), "{command}: {}", failed.text);
    }
    // The name in the certificate is what counts.
    let elsewhere = site.url.replace("127.0.0.1", "localhost");
    let failed = rdmesh("ann", &elsewhere, &["ps"]);
    assert!(!failed.status.success() && failed.text.contains("no connection by TLS"), "{}", failed.text);
}
