# SPDX-License-Identifier: Apache-2.0
"""Comparisons of several processes on this machine, each in the stack of its maker."""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import horovod_environment
from benchmarks.contestants import WORKERS, Absent, Contestant, contestant
from benchmarks.harness import Row, in_turns
from benchmarks.rendezvous import rendezvous
from npu_keras import tf_config
from npu_keras.launch_plan import free_addresses

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hosts"))
import two_hosts  # noqa: E402
from two_hosts import Host  # noqa: E402

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
Started = contextlib.AbstractContextManager[Contestant]


def npu_keras_ranks(engine: str, ranks: int, ways: Sequence[str]) -> Started:
    """Starts ranks of npu_keras by its launcher."""
    script = [str(WORKERS / "npu_keras_ranks.py"), *ways]
    launcher = ["-m", "npu_keras", "run", "-n", str(ranks), "--engine", engine]
    command = [sys.executable, *(launcher if ranks > 1 else []), *script]
    return contestant([command], [ONE_THREAD], ranks)


@contextlib.contextmanager
def mwms_ranks(ways: Sequence[str]) -> Iterator[Contestant]:
    """Starts two workers of `MultiWorkerMirroredStrategy`."""
    command = [sys.executable, str(WORKERS / "mwms_ranks.py"), *ways]
    with free_addresses(2) as addresses:
        configs = [
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            for rank in range(2)
        ]
        own = [{**ONE_THREAD, "TF_CONFIG": json.dumps(config)} for config in configs]
        own = [{**env, "TF_GRPC_REUSE_PORT": "1"} for env in own]
        with contestant([command] * 2, own, 2) as started:
            yield started


@contextlib.contextmanager
def horovod_ranks(ranks: int, ways: Sequence[str]) -> Iterator[Contestant]:
    """Starts ranks of Horovod in their own environment.

    Raises:
        Absent: if it has not been built.
    """
    python = horovod_environment.python()
    if python is None:
        raise Absent("Horovod is not built: `python -m benchmarks.horovod_environment`")
    command = [python, str(WORKERS / "horovod_ranks.py"), *ways]
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


def ranks_on(hosts: Sequence[Host], ways: Sequence[str]) -> Started:
    """Starts a rank of npu_keras on each host, which find each other by `TF_CONFIG`."""
    addresses = [host.address for host in hosts]
    command = [sys.executable, str(WORKERS / "npu_keras_ranks.py"), *ways]
    own = [
        {**ONE_THREAD, "TF_CONFIG": tf_config.render(addresses, rank)} for rank in range(len(hosts))
    ]
    return contestant([[*host.command, *command] for host in hosts], own, len(hosts))


def apart(way: str) -> Started:
    """Starts two processes that do not know of each other: what their contention alone costs."""
    command = [sys.executable, str(WORKERS / "npu_keras_ranks.py"), way]
    return contestant([command] * 2, [ONE_THREAD] * 2, 2)


def distributed_fit(quick: bool) -> Iterator[Row]:
    """A step of `fit` of the perceptron in two processes, for every way there is."""
    steps, turns = (2, 3) if quick else (3, 6)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[], object]] = {}
        absent: list[str] = []

        def join(started: Started, names: dict[str, str]) -> None:
            try:
                one = stack.enter_context(started)
            except (Absent, RuntimeError) as reason:
                absent.append(f"{', '.join(names)}: {reason}")
            else:
                ways.update({name: one.way(way, steps) for name, way in names.items()})

        ours = ["fit", "scaled", "saturation"]
        join(npu_keras_ranks("mpi", 1, ["alone"]), {"one process": "alone"})
        join(apart("alone"), {"two processes without aggregation": "alone"})
        join(
            npu_keras_ranks("mpi", 2, ours),
            {"mpi": "fit", "mpi, loss scale": "scaled", "mpi, saturation": "saturation"},
        )
        join(npu_keras_ranks("collective", 2, ["fit"]), {"collective": "fit"})
        join(
            mwms_ranks(["fit", "loop_4", "loop_16"]),
            {"MWMS fit": "fit", "MWMS loop, 4 MiB": "loop_4", "MWMS loop, 16 MiB": "loop_16"},
        )
        join(horovod_ranks(1, ["alone"]), {"Horovod's stack, one process": "alone"})
        join(horovod_ranks(2, ["fit"]), {"Horovod": "fit"})
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


def all_reduce(quick: bool) -> Iterator[Row]:
    """Aggregation alone, from a `tf.function`."""
    steps, turns = (2, 4) if quick else (4, 8)
    few, many = {}, {}
    absent: list[str] = []
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        mpi = enter(npu_keras_ranks("mpi", 2, ["raw_20", "reduce_20", "raw_400", "reduce_400"]))
        few = {"mpi4py alone": mpi.way("raw_20", steps), "mpi": mpi.way("reduce_20", steps)}
        many = {"mpi": mpi.way("reduce_400", steps), "mpi4py alone": mpi.way("raw_400", steps)}
        collective = enter(npu_keras_ranks("collective", 2, ["reduce_400", "reduce_20"]))
        few["collective"] = collective.way("reduce_20", steps)
        many["collective"] = collective.way("reduce_400", steps)
        many["MWMS"] = enter(mwms_ranks(["reduce_400"])).way("reduce_400", steps)
        try:
            horovod = enter(horovod_ranks(2, ["reduce_400"]))
            many["Horovod"] = horovod.way("reduce_400", steps)
        except (Absent, RuntimeError) as reason:
            absent.append(f"Horovod: {reason}")
        timed = functools.partial(in_turns, turns=turns, reported=True)
        yield timed("all-reduce of 38 MB in 20 tensors", few, target={"mpi": 1.25})
        row = timed("all-reduce of 400 tensors of 4 KB", many)
    yield row._replace(absent=absent)
    yield from row.against("Horovod", {"mpi": 0.6})
    yield from row.against("MWMS", {"collective": 1.0})


def communication(quick: bool) -> Iterator[Row]:
    """The tail and the wire dtype, over a cable of 1 Gbit/s and within the machine."""
    steps, turns = (2, 3) if quick else (2, 5)
    name = "8 variables of 4 MB, Adam, collective"
    with free_addresses(2) as addresses:
        here = [Host((), address) for address in addresses]
    with ranks_on(here, ["no_tail", "tail"]) as one:
        ways = {"no tail": one.way("no_tail", steps), "tail": one.way("tail", steps)}
        yield in_turns(f"{name}, loopback", ways, turns=turns, reported=True, target={"tail": 1.02})
    far = f"{name}, two hosts with {two_hosts.RATE}/s"
    obstacle = two_hosts.obstacle()
    if obstacle is not None:
        yield Row(far, [], {}, absent=[obstacle])
        return
    with two_hosts.connected() as link, ranks_on(link.hosts, ["no_tail", "tail", "bf16"]) as two:
        names = {"no tail": "no_tail", "tail": "tail", "bf16 on the wire": "bf16"}
        ways = {name: two.way(way, steps) for name, way in names.items()}
        targets: dict[str, float | None] = {"tail": 0.88, "bf16 on the wire": 0.65}
        yield in_turns(far, ways, turns=turns, reported=True, target=targets)


def more_ranks(quick: bool) -> Iterator[Row]:
    """A step of `fit` by the number of ranks, each with a batch of its own, on the same cores."""
    steps, turns = (2, 3) if quick else (2, 4)
    with contextlib.ExitStack() as stack:
        ways = {}
        for ranks in (1, 2, 4):
            started = stack.enter_context(npu_keras_ranks("mpi", ranks, ["fit"]))
            ways[f"{ranks} ranks, mpi"] = started.way("fit", steps)
        yield in_turns("growth: 9.5 M parameters, SGD", ways, turns=turns, reported=True)


def sharding(quick: bool) -> Iterator[Row]:
    """The step of Adam with its slots divided among ranks, against whole ones."""
    steps, turns = (2, 3) if quick else (2, 5)
    for ranks, most in ((2, 0.55),) if quick else ((2, 0.55), (4, 0.3)):
        with npu_keras_ranks("mpi", ranks, ["adam", "sharded", "slots", "shard"]) as one:
            name = f"weight-update sharding, Adam, {ranks} ranks"
            ways = {"whole": one.way("adam", steps), "sharded": one.way("sharded", steps)}
            yield in_turns(name, ways, turns=turns, reported=True, target={"sharded": 1.1})
            sizes = {"whole": one.way("slots", 1), "sharded": one.way("shard", 1)}
            row = in_turns(
                f"{name}: slots", sizes, turns=1, reported=True, target={"sharded": most}
            )
            yield row._replace(unit="bytes on the rank with most")
