"""Ask the same key again and again, with a querier that is declared once."""

import time

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("-s", "--selector", default="demo/example/**", help="key?parameters")
    parser.add_argument("-n", "--number", type=int, help="how often; without it, for ever")
    parser.add_argument("-i", "--interval", type=float, default=1.0, help="seconds between two")
    parser.add_argument("--wait", action="store_true", help="begin when somebody can answer")
    args = parser.parse_args()
    selector = zenoh.Selector(args.selector)
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_querier(selector.key_expr) as querier,
    ):
        while args.wait and not querier.matching_status.matching:
            time.sleep(0.01)
        count = 0
        while args.number is None or count < args.number:
            say(f"asking {selector} the {count}. time")
            for reply in querier.get(parameters=selector.parameters, payload=str(count)):
                if (sample := reply.ok) is not None:
                    say(f"{sample.key_expr}: {sample.payload.to_string()}")
            count += 1
            time.sleep(args.interval)


run(main)
