"""Lets tests of a newer rdma-core run on an older one's pyverbs and base classes."""
import importlib.util
import sys
import types

ENUMS = "pyverbs.libibverbs_enums"


def name_enums():
    """Newer versions have each C enum by its name in a module of their own, older ones all constants in one module."""
    if importlib.util.find_spec(ENUMS) is None:
        import pyverbs.enums

        module = types.ModuleType(ENUMS)
        module.__getattr__ = lambda name: pyverbs.enums
        sys.modules[ENUMS] = module


def create_players(test, resource, **arguments):
    """Makes both ends of a test's traffic, and connects them."""
    test.client = resource(**test.dev_info, **arguments)
    test.server = resource(**test.dev_info, **arguments)
    test.client.pre_run(test.server.psns, test.server.qps_num)
    test.server.pre_run(test.client.psns, test.client.qps_num)
    test.traffic_args = dict(
        client=test.client, server=test.server, iters=test.iters, gid_idx=test.gid_index, port=test.ib_port
    )


def complete(base):
    """Adds to the module of base classes what it lacks."""
    if not hasattr(base.RDMATestCase, "create_players"):
        base.RDMATestCase.create_players = create_players
