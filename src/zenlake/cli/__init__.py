"""The `zenlake` command."""


def main() -> None:
    raise SystemExit(0)
