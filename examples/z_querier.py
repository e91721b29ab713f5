"""Repeat a query with a querier, which is declared once."""

import time

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-s", "--selector", default="demo/example/**", help="key?parameters")
    parser.add_argument("-n", "--number", type=int, help="how many queries; endless without")
    parser.add_argument(
        "-i", "--interval", type=float, default=1.0, help="seconds between two queries"
    )
    parser.add_argument("--wait", action="store_true", help="wait for a queryable first")
    args = parser.parse_args()
    selector = zenoh.Selector(args.selector)
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_querier(selector.key_expr) as querier,
    ):
        while args.wait and not querier.matching_status.matching:
            time.sleep(0.01)
        count = 0
        while args.number is None or count < args.number:
            say(f"query {count}: {selector}")
            for reply in querier.get(parameters=selector.parameters, payload=str(count)):
                if (sample := reply.ok) is not None:
                    say(f"{sample.key_expr}: {sample.payload.to_string()}")
            count += 1
            time.sleep(args.interval)


run(main)
