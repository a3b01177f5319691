"""Who takes part: one line a contestant, and the groups in which they are measured in turn."""

import dataclasses
import os

RAW, KVXFER, PEER, REFERENCE, BEFORE = "raw", "kvxfer", "peer", "reference", "before"

# What the name of a contestant of another build ends with.
BEFORE_SUFFIX = ", before"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """How one contestant is run. `kind`: raw is the raw loop that kvxfer is compared
    with, reference is another raw loop that is shown beside it, peer is another product, before is
    kvxfer of another build."""

    name: str
    kind: str
    program: str  # compare_<program> of the build, or peers/<program>.py
    mode: str
    threads: int = 1  # that move bytes, on each side
    connections: int = 1  # of tcp, shared by the threads
    spin: bool = False  # may burn a core while it waits
    environment: tuple = ()  # of (name, value)
    package: str = ""  # of the peers' environment that it needs
    # Has threads that poll while nothing is asked of it: stopped (SIGSTOP) between its turns.
    pause: bool = False
    programs: str = ""  # the folder of its driver; empty: that of all

    def command(self, where, role, size, cache_fd):
        """`where` is an environment.Places."""
        order = ["--role", role, "--bytes", str(size), "--cache-fd", str(cache_fd),
                 "--mode", self.mode]
        if self.in_python:
            program = os.path.join(where.here, "peers", self.program + ".py")
            return [where.python, program, *order]
        order += ["--threads", str(self.threads), "--connections", str(self.connections)]
        order += ["--spin"] if self.spin else []
        return [os.path.join(self.programs or where.programs, "compare_" + self.program), *order]

    @property
    def in_python(self):
        return self.program.endswith("_driver")


@dataclasses.dataclass(frozen=True)
class Group:
    """Contestants that are measured in turn, on the same work."""

    name: str
    title: str
    contestants: tuple
    # A round is one block of 4 KiB (a ping), else the whole of --total in blocks of each size.
    ping: bool = False
    hogs: bool = False  # beside one process on every core that only computes


_UCX_WHEEL = "libucx-cu12"


def _ucx(name, transports, mode, package="", kind=PEER, spin=False):
    """UCX's own put: Debian's UCX that the driver was built with, or a newer one from PyPI. It polls
    whether it may or not."""
    return Contestant(name, kind, "ucx", mode, spin=spin, package=package,
                      environment=(("UCX_TLS", transports),))


def _kvxfer_ucx(name, transports, spin=False):
    return Contestant(name, KVXFER, "kvxfer", "ucx", spin=spin, package=_UCX_WHEEL,
                      environment=(("UCX_TLS", transports),))


def _nixl(name, transports, mode):
    return Contestant(name, PEER, "nixl_driver", mode, package="nixl-cu12",
                      environment=(("UCX_TLS", transports),), pause=True)


# What UCX_TLS lets UCX choose from. Found with UCX_PROTO_INFO=y and UCX_LOG_LEVEL=info: memory of
# UCX's own is copied into by the initiator (posix); any other memory is either attached to (cma) or
# copied through a queue in shared memory by both sides (posix alone), which is faster and takes two
# cores. NIXL asks for endpoints that notice the peer's failure, which posix has not: its data takes
# cma, its notifications tcp.
_TCP = "tcp,self"
_POSIX = "posix,self"
_CMA = "posix,cma,self"
_NIXL_LOCAL = "cma,tcp,self"

_NIXL_TCP = (_nixl("NIXL tcp", _TCP, "no-progress"),
             _nixl("NIXL tcp, progress thread", _TCP, "progress"))
_NIXL_SM = (_nixl("NIXL sm", _NIXL_LOCAL, "no-progress"),
            _nixl("NIXL sm, progress thread", _NIXL_LOCAL, "progress"))
_UCX_TCP = (_ucx("UCX put 1.13 tcp", _TCP, "any"),
            _ucx("UCX put 1.22 tcp", _TCP, "any", _UCX_WHEEL))
_UCX_OWN = (_ucx("UCX put 1.13 own memory", _POSIX, "own"),
            _ucx("UCX put 1.22 own memory", _POSIX, "own", _UCX_WHEEL))
_UCX_ANY = (_ucx("UCX put 1.13 posix", _POSIX, "any"),
            _ucx("UCX put 1.22 posix", _POSIX, "any", _UCX_WHEEL),
            _ucx("UCX put 1.22 cma", _CMA, "any", _UCX_WHEEL))
_MOONCAKE = Contestant("Mooncake tcp", PEER, "mooncake_driver", "", pause=True,
                       package="mooncake-transfer-engine-non-cuda")


def _raw_tcp(name, kind, mode="gather", threads=1, connections=1, spin=False):
    return Contestant(name, kind, "raw_tcp", mode, threads, connections, spin)


def _raw_shm(name, kind, mode, threads=1, spin=False):
    return Contestant(name, kind, "raw_shm", mode, threads, spin=spin)


def _kvxfer(name, mode, connections=1, spin=False, threads=1):
    return Contestant(name, KVXFER, "kvxfer", mode, threads, connections, spin)


_SLEEPING_TCP = (_kvxfer("kvxfer tcp", "tcp", 2), _raw_tcp("blocking ping-pong", RAW, "gather-reno"))
_SLEEPING_SHM = (_kvxfer("kvxfer mapped", "mapped"), _kvxfer("kvxfer attached", "attached"),
                 _raw_shm("futex ping-pong", RAW, "copy"))

GROUPS = (
    Group("tcp", "TCP over loopback", (
        _kvxfer("kvxfer tcp", "tcp", 2),
        # With the congestion control that kvxfer takes on one host: it makes the loop faster.
        _raw_tcp("raw gathered", RAW, "gather-reno", 1, 2),
        _raw_tcp("raw gathered, 1 connection", REFERENCE, "gather-reno", 1, 1),
        _raw_tcp("raw gathered, 2 threads", REFERENCE, "gather-reno", 2, 2),
        _raw_tcp("raw gathered, 2 threads, default congestion control", REFERENCE, "gather", 2, 2),
        _raw_tcp("raw, one send a block, 2 threads", REFERENCE, "per-block", 2, 2),
        *_NIXL_TCP, *_UCX_TCP, _MOONCAKE)),
    Group("tcp-threads", "TCP over loopback, two data threads", (
        _kvxfer("kvxfer tcp, 2 data threads", "tcp", 2, threads=2),
        _raw_tcp("raw gathered, 2 threads", RAW, "gather-reno", 2, 2),
        _raw_tcp("raw, one send a block, 2 threads", REFERENCE, "per-block", 2, 2),
        _raw_tcp("raw gathered", REFERENCE, "gather-reno", 1, 2))),
    Group("shm-mapped", "Shared memory, the target's memory mapped", (
        _kvxfer("kvxfer mapped", "mapped"),
        _raw_shm("raw non-temporal copy", RAW, "stream"),
        _raw_shm("raw non-temporal copy, 2 threads", REFERENCE, "stream", 2),
        _raw_shm("raw memcpy", REFERENCE, "copy"),
        *_UCX_OWN)),
    Group("shm-attached", "Shared memory, any memory of the target", (
        _kvxfer("kvxfer attached", "attached"),
        _raw_shm("raw process_vm_writev", RAW, "attached"),
        _raw_shm("raw process_vm_writev, 2 threads", REFERENCE, "attached", 2),
        *_NIXL_SM, *_UCX_ANY)),
    # What a peer reaches that copies on both sides, so on two cores.
    Group("shm-attached-2", "Shared memory, any memory of the target, two copying threads", (
        _kvxfer("kvxfer attached, 2 threads", "attached", threads=2),
        _raw_shm("raw process_vm_writev, 2 threads", RAW, "attached", 2),
        *_NIXL_SM, *_UCX_ANY)),
    Group("ping-tcp", "4 KiB and answer over TCP, nobody spins", _SLEEPING_TCP, ping=True),
    Group("ping-shm", "4 KiB and answer over shared memory, nobody spins", _SLEEPING_SHM,
          ping=True),
    # The peers have no other way: who uses them polls.
    Group("ping-tcp-spin", "4 KiB and answer over TCP, spinning allowed", (
        _kvxfer("kvxfer tcp, spinning", "tcp", 2, spin=True),
        _raw_tcp("busy-polled ping-pong", RAW, "gather-reno", spin=True),
        *_NIXL_TCP, *_UCX_TCP, _MOONCAKE), ping=True),
    Group("ping-shm-spin", "4 KiB and answer over shared memory, spinning allowed", (
        _kvxfer("kvxfer mapped, spinning", "mapped", spin=True),
        _kvxfer("kvxfer attached, spinning", "attached", spin=True),
        _raw_shm("spinning ping-pong", RAW, "copy", spin=True),
        *_NIXL_SM, *_UCX_OWN, *_UCX_ANY[:2]), ping=True),
    # All over one UCX: what the backend ucx adds to it, or takes from it.
    Group("ucx-tcp", "Over UCX 1.22, TCP", (
        _kvxfer_ucx("kvxfer ucx tcp", _TCP),
        _ucx("UCX put 1.22 tcp", _TCP, "any", _UCX_WHEEL, RAW), *_NIXL_TCP)),
    Group("ucx-cma", "Over UCX 1.22, shared memory", (
        _kvxfer_ucx("kvxfer ucx cma", _CMA),
        _ucx("UCX put 1.22 cma", _CMA, "any", _UCX_WHEEL, RAW), *_NIXL_SM)),
    Group("ping-ucx-tcp-spin", "4 KiB and answer over UCX 1.22, TCP, spinning allowed", (
        _kvxfer_ucx("kvxfer ucx tcp, spinning", _TCP, spin=True),
        _ucx("UCX put 1.22 tcp", _TCP, "any", _UCX_WHEEL, RAW, spin=True), *_NIXL_TCP),
          ping=True),
    Group("ping-ucx-cma-spin", "4 KiB and answer over UCX 1.22, shared memory, spinning allowed", (
        _kvxfer_ucx("kvxfer ucx cma, spinning", _CMA, spin=True),
        _ucx("UCX put 1.22 cma", _CMA, "any", _UCX_WHEEL, RAW, spin=True), *_NIXL_SM),
          ping=True),
    Group("hogs-tcp", "4 KiB and answer over TCP beside a busy process on every core", (
        *_SLEEPING_TCP, *_NIXL_TCP), ping=True, hogs=True),
    Group("hogs-shm", "4 KiB and answer over shared memory beside a busy process on every core", (
        *_SLEEPING_SHM, *_NIXL_SM), ping=True, hogs=True),
)


def with_before(group, programs):
    """Each contestant of kvxfer, the same one with the drivers in `programs`, and the raw loop."""
    both = []
    for one in group.contestants:
        if one.kind not in (KVXFER, RAW):
            continue
        both.append(one)
        if one.kind == KVXFER:
            both.append(dataclasses.replace(one, name=one.name + BEFORE_SUFFIX, kind=BEFORE,
                                            programs=programs))
    return dataclasses.replace(group, contestants=tuple(both))


def without_peers(group):
    return dataclasses.replace(group, contestants=tuple(
        one for one in group.contestants if one.kind != PEER and not one.package))
