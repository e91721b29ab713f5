"""Receive samples as Arrow record batches: no object is made for a sample. Only in zenlake."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="demo/example/**")
    parser.add_argument("-r", "--rows", type=int, default=10_000, help="at most, of a batch")
    parser.add_argument("-a", "--age", type=float, default=0.1, help="seconds a row may wait")
    args = parser.parse_args()
    batches = zenoh.ArrowBatches(max_rows=args.rows, max_age=args.age)
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, batches) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        total = 0
        for batch in subscriber:
            total += batch.num_rows
            keys = len(batch["key"].unique())
            say(f"a batch of {batch.num_rows} rows and {keys} keys; {total} rows in all")


run(main)
