# SPDX-License-Identifier: Apache-2.0
"""Comparisons of several processes on this machine, each in the stack of its maker."""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import horovod_environment
from benchmarks.contestants import WORKERS, Absent, Contestant, Setting, Started, contestant
from benchmarks.harness import Row, Timed, in_turns
from benchmarks.rendezvous import rendezvous
from npu_keras import tf_config
from npu_keras.launch_plan import free_addresses

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hosts"))
import two_hosts  # noqa: E402
from two_hosts import Host  # noqa: E402

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
OURS = [sys.executable, str(WORKERS / "npu_keras_ranks.py")]


def npu_keras_ranks(setting: Setting, engine: str, ranks: int) -> Contestant:
    """Returns ranks of npu_keras, started by its launcher."""
    launcher = ["-m", "npu_keras", "run", "-n", str(ranks), "--engine", engine]
    command = [OURS[0], *(launcher if ranks > 1 else []), *OURS[1:]]
    return setting.field.contestant(
        f"{engine}, {ranks} ranks", lambda: contestant([command], [ONE_THREAD], ranks)
    )


def apart(setting: Setting) -> Contestant:
    """Returns two processes that do not know of each other: what their contention alone costs."""
    return setting.field.contestant("apart", lambda: contestant([OURS] * 2, [ONE_THREAD] * 2, 2))


def mwms_ranks(setting: Setting) -> Contestant:
    """Returns two workers of `MultiWorkerMirroredStrategy`."""
    return setting.field.contestant("MWMS", _mwms)


@contextlib.contextmanager
def _mwms() -> Iterator[Contestant]:
    command = [sys.executable, str(WORKERS / "mwms_ranks.py")]
    with free_addresses(2) as addresses:
        configs = [
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            for rank in range(2)
        ]
        own = [{**ONE_THREAD, "TF_CONFIG": json.dumps(config)} for config in configs]
        own = [{**env, "TF_GRPC_REUSE_PORT": "1"} for env in own]
        with contestant([command] * 2, own, 2) as started:
            yield started


def horovod_ranks(setting: Setting, ranks: int) -> Contestant:
    """Returns ranks of Horovod in their own environment.

    Raises:
        Absent: if it has not been built.
    """
    return setting.field.contestant(f"Horovod, {ranks} ranks", lambda: _horovod(ranks))


@contextlib.contextmanager
def _horovod(ranks: int) -> Iterator[Contestant]:
    python = horovod_environment.python()
    if python is None:
        raise Absent("Horovod is not built: `python -m benchmarks.horovod_environment`")
    command = [python, str(WORKERS / "horovod_ranks.py")]
    with rendezvous() as port:
        common = {
            **ONE_THREAD,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "900",  # it is stopped while others have their turn
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_SIZE": str(ranks),
            "HOROVOD_LOCAL_SIZE": str(ranks),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "PYTHONPATH": "",
        }
        own = [
            {**common, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)}
            for rank in range(ranks)
        ]
        # Its threads wake up a thousand times a second, which took 16 % of a core for each rank.
        with contestant([command] * ranks, own, ranks, busy=True) as started:
            yield started


def ranks_on(hosts: Sequence[Host]) -> Started:
    """Starts a rank of npu_keras on each host, which find each other by `TF_CONFIG`."""
    addresses = [host.address for host in hosts]
    own = [
        {**ONE_THREAD, "TF_CONFIG": tf_config.render(addresses, rank)} for rank in range(len(hosts))
    ]
    return contestant([[*host.command, *OURS] for host in hosts], own, len(hosts))


def distributed_fit(setting: Setting) -> Iterator[Row]:
    """A step of `fit` of the perceptron in two processes, for every way there is."""
    steps, turns = (2, 3) if setting.quick else (3, 5)
    ways: dict[str, Callable[[], object]] = {}
    absent: list[str] = []

    def join(find: Callable[[], Contestant], names: dict[str, str]) -> None:
        try:
            one = find()
        except (Absent, RuntimeError) as reason:
            absent.append(f"{', '.join(names)}: {reason}")
        else:
            ways.update({name: one.way(way, steps) for name, way in names.items()})

    ours = functools.partial(npu_keras_ranks, setting)
    horovod = functools.partial(horovod_ranks, setting)
    join(lambda: ours("mpi", 1), {"one process": "alone"})
    join(lambda: apart(setting), {"two processes without aggregation": "alone"})
    join(
        lambda: ours("mpi", 2),
        {"mpi": "fit", "mpi, loss scale": "scaled", "mpi, saturation": "saturation"},
    )
    join(lambda: ours("collective", 2), {"collective": "fit"})
    join(
        lambda: mwms_ranks(setting),
        {"MWMS fit": "fit", "MWMS loop, 4 MiB": "loop_4", "MWMS loop, 16 MiB": "loop_16"},
    )
    join(lambda: horovod(1), {"Horovod's stack, one process": "alone"})
    join(lambda: horovod(2), {"Horovod": "fit"})
    row = in_turns("two processes, 9.5 M parameters, SGD", ways, turns=turns, reported=True)
    yield row._replace(absent=absent)
    yield from row.against("two processes without aggregation", {"mpi": None, "Horovod": None})
    yield from row.against("MWMS fit", {"mpi": 0.35})
    yield from row.against("mpi", {"mpi, loss scale": 1.02, "mpi, saturation": 1.05})
    loops = [name for name in ways if name.startswith("MWMS loop")]
    yield from row.against(min(loops, key=row.median, default=""), {"collective": 1.0})
    yield from row.quotients(
        ("Horovod", "Horovod's stack, one process"), ("mpi", "one process"), 0.65
    )


def all_reduce(setting: Setting) -> Iterator[Row]:
    """Aggregation alone, from a `tf.function`."""
    steps, turns = (2, 4) if setting.quick else (4, 8)
    absent: list[str] = []
    mpi = npu_keras_ranks(setting, "mpi", 2)
    collective = npu_keras_ranks(setting, "collective", 2)
    few = {
        "mpi4py alone": mpi.way("raw_20", steps),
        "mpi": mpi.way("reduce_20", steps),
        "collective": collective.way("reduce_20", steps),
    }
    many = {
        "mpi": mpi.way("reduce_400", steps),
        "mpi4py alone": mpi.way("raw_400", steps),
        "collective": collective.way("reduce_400", steps),
        "MWMS": mwms_ranks(setting).way("reduce_400", steps),
    }
    try:
        many["Horovod"] = horovod_ranks(setting, 2).way("reduce_400", steps)
    except (Absent, RuntimeError) as reason:
        absent.append(f"Horovod: {reason}")
    timed = functools.partial(in_turns, turns=turns, reported=True)
    yield timed("all-reduce of 38 MB in 20 tensors", few, target={"mpi": 1.25})
    row = timed("all-reduce of 400 tensors of 4 KB", many)
    yield row._replace(absent=absent)
    yield from row.against("Horovod", {"mpi": 0.6})
    yield from row.against("MWMS", {"collective": 1.0})


def communication(setting: Setting) -> Iterator[Row]:
    """The tail and the wire dtype, over a cable of 1 Gbit/s and within the machine."""
    steps, turns = (2, 3) if setting.quick else (2, 5)
    name = "8 variables of 4 MB, Adam, collective"
    one = npu_keras_ranks(setting, "collective", 2)
    ways = {"no tail": one.way("no_tail", steps), "tail": one.way("tail", steps)}
    yield in_turns(f"{name}, loopback", ways, turns=turns, reported=True, target={"tail": 1.02})
    far = f"{name}, two hosts with {two_hosts.RATE}/s"
    obstacle = two_hosts.obstacle()
    if obstacle is not None:
        yield Row(far, [], {}, absent=[obstacle])
        return
    with two_hosts.connected() as link, ranks_on(link.hosts) as two:
        names = {"no tail": "no_tail", "tail": "tail", "bf16 on the wire": "bf16"}
        ways = {name: two.way(way, steps) for name, way in names.items()}
        targets: dict[str, float | None] = {"tail": 0.88, "bf16 on the wire": 0.65}
        yield in_turns(far, ways, turns=turns, reported=True, target=targets)


def sharding(setting: Setting) -> Iterator[Row]:
    """The step of Adam with its slots divided among ranks, against whole ones."""
    steps, turns = (2, 3) if setting.quick else (2, 5)
    for ranks, most in ((2, 0.55),) if setting.quick else ((2, 0.55), (4, 0.3)):
        one = npu_keras_ranks(setting, "mpi", ranks)
        name = f"weight-update sharding, Adam, {ranks} ranks"
        ways = {"whole": one.way("adam", steps), "sharded": one.way("sharded", steps)}
        yield in_turns(name, ways, turns=turns, reported=True, target={"sharded": 1.1})
        slots = {"whole": "slots", "sharded": "shard"}
        sizes = [Timed(way, [one.most(slot, 1) / 1e6]) for way, slot in slots.items()]
        yield Row(f"{name}: slots", sizes, {"sharded": most}, unit="MB on the rank with most")
