"""Receive samples as Arrow record batches, without an object per sample. Only in zenlake."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/**")
    parser.add_argument("-r", "--rows", type=int, default=10_000, help="most rows of a batch")
    parser.add_argument("-a", "--age", type=float, default=0.1, help="seconds that a row may wait")
    args = parser.parse_args()
    batches = zenoh.ArrowBatches(max_rows=args.rows, max_age=args.age)
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, batches) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        total = 0
        for batch in subscriber:
            total += batch.num_rows
            keys = len(batch["key"].unique())
            say(f"a batch of {batch.num_rows} rows and {keys} keys; {total} rows in all")


run(main)
