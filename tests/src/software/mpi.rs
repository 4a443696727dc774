//! MPI programs: two ranks on each endpoint, started without ssh.

use super::figures::each_way;
use super::{Row, Unit};

const PORT: u16 = 18700;

pub(super) fn rows() -> Vec<Row> {
    let row = |name: &str, launcher: &str, program: &str| {
        let server = format!("{REMOTE} --serve {PORT}");
        let client = format!("env REMOTE_PORT={PORT} {launcher} target/test-programs/{program}");
        let row = Row::new("MPI", name, &server, &client).port(PORT).runs_on();
        row.prints("all 22 cases hold").figure(Unit::Microseconds, each_way)
    };
    let open_mpi = |name: &str, options: &str| row(name, &format!("{OPEN_MPI} {options}"), "mpi.openmpi");
    let mpich = |name: &str, options: &str| row(name, &format!("{MPICH} {options}"), "mpi.mpich");
    vec![
        open_mpi("Open MPI over UCX, rc_verbs", &format!("{OPEN_MPI_UCX} -x UCX_TLS=rc_verbs,ud_verbs,self"))
            .prints("rma(rc_verbs/rxe0:1)"),
        open_mpi("Open MPI over UCX, ud_verbs", &format!("{OPEN_MPI_UCX} -x UCX_TLS=ud_verbs,self"))
            .prints("(ud_verbs/rxe0:1)"),
        open_mpi("Open MPI over libfabric, verbs;ofi_rxm", &open_mpi_ofi("verbs;ofi_rxm"))
            .prints("mtl:ofi:provider: rxe0"),
        mpich("MPICH over UCX, rc_verbs", &format!("{MPICH_UCX} -genv UCX_TLS rc_verbs,ud_verbs,self"))
            .prints("tag(rc_verbs/rxe0:1)"),
        mpich("MPICH over UCX, ud_verbs", &format!("{MPICH_UCX} -genv UCX_TLS ud_verbs,self"))
            .prints("tag(ud_verbs/rxe0:1)"),
    ]
}

/// No TCP and no shared memory between the ranks, on the same endpoint neither.
fn open_mpi_ofi(provider: &str) -> String {
    format!(
        "--mca pml cm --mca mtl ofi --mca osc pt2pt --mca btl self --mca mtl_ofi_provider_include \"{provider}\" \
         --mca mtl_base_verbose 1"
    )
}

/// Script that runs a command in another endpoint, as ssh does on a cluster.
const REMOTE: &str = "tests/programs/mpi/remote.py";
const OPEN_MPI: &str = "mpirun.openmpi --allow-run-as-root --host 10.7.0.3:2,10.7.0.2:2 --oversubscribe \
                        --mca plm_rsh_agent $PWD/tests/programs/mpi/remote.py --mca mpi_yield_when_idle 1";
const OPEN_MPI_UCX: &str = "--mca pml ucx --mca osc ucx --mca btl ^openib,tcp,vader,ofi -x UCX_NET_DEVICES=rxe0:1 \
                            -x UCX_LOG_LEVEL=info";
const MPICH: &str = "mpiexec.mpich -n 4 -hosts 10.7.0.3:2,10.7.0.2:2 -launcher rsh \
                     -launcher-exec $PWD/tests/programs/mpi/remote.py";
const MPICH_UCX: &str = "-genv UCX_NET_DEVICES rxe0:1 -genv UCX_LOG_LEVEL info";
