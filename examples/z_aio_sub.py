"""Subscribe from asyncio. Only in zenlake."""

import asyncio

import zenlake as zenoh
from common import make_config, make_parser, run, say


async def subscribe() -> None:
    args = make_parser(__doc__, key="demo/example/**").parse_args()
    async with (
        await zenoh.aio.open(make_config(zenoh.Config, args)) as session,
        await session.declare_subscriber(args.key) as subscriber,
    ):
        say(f"subscribed to {args.key}")
        async for sample in subscriber:
            say(f"{sample.key_expr}: {sample.payload.to_string()}")


run(lambda: asyncio.run(subscribe()))
