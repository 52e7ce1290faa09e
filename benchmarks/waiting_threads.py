"""Training steps per second with threads that wait asleep (the default here) or spinning (the libraries' default),
beside busy processes and without.

    python benchmarks/waiting_threads.py --threads 2 --load 0 1

Each measurement is a process of its own, since the policy is read when torch is loaded. The ways take turns, `--trials`
times; the table has every figure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

CHILD = """
import sys, time, torch
threads, layers, hidden, seconds = (int(a) for a in sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(hidden, hidden // 64, 4 * hidden, batch_first=True)
model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
rows = torch.randn(16, 64, hidden)

def step():
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()

for _ in range(3):
    step()
done, begun = 0, time.monotonic()
while (passed := time.monotonic() - begun) < seconds:
    step()
    done += 1
print(done / passed)
"""
LOAD = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--load", type=int, nargs="+", default=[0, 1], help="busy processes beside it")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    ways = [(1, "PASSIVE"), (args.threads, "PASSIVE"), (args.threads, "")]
    found: dict[tuple[int, int, str], list[float]] = {}
    for _ in range(args.trials):
        for load in args.load:
            busy = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(load)]
            try:
                for threads, policy in ways:
                    found.setdefault((load, threads, policy), []).append(measure(args, threads, policy))
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
    print("| busy processes | threads | waiting threads | steps/s |\n|--:|--:|---|---|")
    for (load, threads, policy), rates in found.items():
        waiting = ("sleep" if policy else "spin") if threads > 1 else "none"
        print(f"| {load} | {threads} | {waiting} | {', '.join(f'{rate:.2f}' for rate in rates)} |")


def measure(args: argparse.Namespace, threads: int, policy: str) -> float:
    """Steps per second."""
    ours = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    words = [str(number) for number in (threads, args.layers, args.hidden, args.seconds)]
    command = [sys.executable, "-c", CHILD, *words]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
