"""Ask who is there now."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="group/**")
    parser.add_argument("-o", "--timeout", type=float, default=10.0, help="seconds")
    args = parser.parse_args()
    with zenoh.open(configured(zenoh.Config, args)) as session:
        for reply in session.liveliness().get(args.key, timeout=args.timeout):
            if (sample := reply.ok) is not None:
                say(f"{sample.key_expr} is there")
            else:
                say(f"error: {reply.err.payload.to_string()}")


run(main)
