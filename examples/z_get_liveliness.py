"""List the liveliness tokens that are alive."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="group/**")
    parser.add_argument(
        "-o", "--timeout", type=float, default=10.0, help="seconds to wait for replies"
    )
    args = parser.parse_args()
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        for reply in session.liveliness().get(args.key, timeout=args.timeout):
            if (sample := reply.ok) is not None:
                say(f"{sample.key_expr} is alive")
            else:
                say(f"error: {reply.err.payload.to_string()}")


run(main)
