"""What a scheduling decision costs, by number of hosts: `python -m bench.scheduler`.

The snapshot is filled in memory; each plan is followed by a refresh of one host, as a claim would cause.
"""

from __future__ import annotations

import time

from kilonova.placement.providers import Amounts
from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import HostFacts, Hosts, Marks

TRAITS = frozenset(f"CUSTOM_TRAIT_{number}" for number in range(20))
BOOT = Request(resources={"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20})
PINNED = Request(
    resources={"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20},
    zone="az1",
    excluded_hosts=frozenset({"host-1"}),
    required_traits=frozenset({"CUSTOM_TRAIT_1"}),
    forbidden_traits=frozenset({"CUSTOM_TRAIT_99"}),
)
HUGE = Request(resources={"VCPU": 2, "MEMORY_MB": 4_000_000})


def host(number: int, used: int = 0, change: int = 1) -> HostFacts:
    return HostFacts(
        provider_id=number + 1,
        uuid=f"{number:032x}",
        service_id=number + 1,
        host=f"host-{number}",
        hypervisor_hostname=f"host-{number}",
        zone=f"az{number % 3}",
        disabled=number % 50 == 0,
        disabled_reason=None,
        forced_down=False,
        inventory={
            "VCPU": Amounts(64, 0, 1, 64, 1, 4.0),
            "MEMORY_MB": Amounts(262144, 512, 1, 262144, 1, 1.0),
            "DISK_GB": Amounts(4000, 0, 1, 4000, 1, 1.0),
        },
        used={"VCPU": 2 * used, "MEMORY_MB": 4096 * used, "DISK_GB": 20 * used},
        traits=TRAITS,
        marks=Marks(change, 1, change),
    )


def filled(number: int) -> tuple[Hosts, float]:
    hosts = Hosts()
    facts = [host(n, used=n % 60) for n in range(number)]
    began = time.process_time()
    for one in facts:
        hosts.put(one)
    return hosts, time.process_time() - began


def cost(planner: Planner, hosts: Hosts, request: Request, rounds: int) -> float:
    """Microseconds of CPU for a plan."""
    planner.plan(request, hosts)
    began = time.process_time()
    for _ in range(rounds):
        planner.plan(request, hosts)
    return (time.process_time() - began) / rounds * 1e6


def update(hosts: Hosts, rounds: int) -> float:
    """Microseconds of CPU for taking in one host's changed use."""
    began = time.process_time()
    for n in range(rounds):
        hosts.use(1 + n % len(hosts), {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}, Marks(n + 2, 1, n + 2))
    return (time.process_time() - began) / rounds * 1e6


def main() -> None:
    planner = Planner(SchedulerConfig())
    print(f"{'hosts':>7} {'fill s':>7} {'plan µs':>8} {'pinned µs':>10} {'refused µs':>11} {'update µs':>10}")
    for number in (1_000, 10_000, 100_000):
        hosts, fill = filled(number)
        rounds = max(50, 500_000 // number)
        figures = [cost(planner, hosts, request, rounds) for request in (BOOT, PINNED, HUGE)]
        plan, pinned, refused = figures
        print(f"{number:>7} {fill:>7.2f} {plan:>8.0f} {pinned:>10.0f} {refused:>11.0f} {update(hosts, 1000):>10.1f}")


if __name__ == "__main__":
    main()
