"""Config against eclipse-zenoh's: the same tree, the same answers, and clearer refusals."""

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from zenlake.api.config.config import Config, changes, for_mode
from zenlake.api.config.schema import KEYS, TREE, Section
from zenlake.errors import ZError
from zenlake.wire.enums import WireWhatAmI

ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT


def keys(section: Section = TREE, at: str = "") -> Iterator[tuple[str, bool]]:
    """Every key, and whether it is a section."""
    for name, field in section.fields.items():
        if isinstance(field.check, Section):
            yield at + name, True
            yield from keys(field.check, f"{at}{name}/")
        else:
            yield at + name, False


LEAVES = [key for key, is_section in keys() if not is_section]


def test_the_tree_is_large() -> None:
    assert len(LEAVES) > 110


@pytest.mark.parametrize("key", LEAVES)
def test_every_key_says_what_it_does_and_its_default_is_of_its_kind(key: str) -> None:
    field = KEYS[key]
    assert field.does.endswith(".")
    assert field.check(field.default, key) == field.default
    for unset in field.unset.values() if isinstance(field.unset, dict) else [field.unset]:
        assert unset is None or field.check(unset, key) == unset


def test_defaults_are_the_reference_s() -> None:
    assert json.loads(str(Config())) == json.loads(str(zenoh.Config()))
    assert str(Config()) == str(zenoh.Config())


@pytest.mark.parametrize("key", [key for key, _ in keys()])
def test_every_key_reads_as_in_the_reference(key: str) -> None:
    assert Config().get_json(key) == zenoh.Config().get_json(key)


def leaf_paths(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value and not set(value) <= {"router", "peer", "client"}:
        for name, item in value.items():
            yield from leaf_paths(item, f"{at}{name}/")
    else:
        yield at.removesuffix("/")


def test_there_is_no_key_of_the_reference_that_is_missing() -> None:
    known = {key for key, _ in keys()} | {"gateway/south"}
    assert set(leaf_paths(json.loads(str(zenoh.Config())))) <= known


ACCEPTED = [
    ("mode", "'client'"),
    ("mode", "null"),
    ("/mode", '"peer"'),
    ("mode/", '"router"'),
    ("scouting//timeout", "1"),
    ("id", '"abc"'),
    ("id", "null"),
    ("scouting", "{}"),
    ("scouting/multicast", "{enabled: false}"),
    ("scouting/delay", "1e3"),
    ("scouting/multicast/address", "'224.0.0.1:1'"),
    ("scouting/multicast/address", "'[ff02::1]:7446'"),
    ("scouting/multicast/autoconnect", '["peer","router","peer"]'),
    ("scouting/multicast/autoconnect", '{peer:["router"], client: null}'),
    ("scouting/multicast/autoconnect", "{}"),
    ("scouting/multicast/autoconnect_strategy", '"greater-zid"'),
    ("scouting/multicast/autoconnect_strategy", '{peer:"greater-zid"}'),
    ("scouting/multicast/autoconnect_strategy", '{peer:{to_peer:"greater-zid"}}'),
    ("scouting/multicast/autoconnect_strategy", '{to_peer:"always"}'),
    ("connect/retry", "{period_init_ms: 5}"),
    ("connect/retry", "{period_init_ms: {peer: 5}, period_increase_factor: 3}"),
    ("connect/timeout_ms", "{router: 1, client: null}"),
    ("connect/exit_on_failure", "{peer: true}"),
    ("connect/endpoints", '["tcp/b:1?b=1;a=2#z=1;c=2"]'),
    ("connect/endpoints", '{peer: ["tcp/a:1"]}'),
    ("connect/endpoints", '[{strategy:"allOf", locators:["tcp/127.0.0.1:1"]}, "tcp/a:1"]'),
    ("listen/endpoints", '{router:["tcp/[::]:7447"], peer:["tcp/[::]:0"]}'),
    ("gateway", '{south: "auto"}'),
    ("gateway", '{south: [{filters: [{modes: ["peer"], zids: ["a1"]}]}]}'),
    ("plugins/foo/bar", "1"),
    ("plugins/foo", "{a: 1, private: 3}"),
    ("plugins/foo/list/0/name", "'x'"),
    ("plugins", "{foo: {a: 1}}"),
    ("transport/link/tls/listen_private_key_base64", '"abc"'),
    ("transport/link/tls", "{enable_mtls: true}"),
    ("transport/link/tx/batch_size", "0x10"),
    ("transport/link/tx/batch_size", "1.0"),
    ("transport/link/tx/queue/size", "{data: 3}"),
    ("transport/link/tx/queue/congestion_control/drop/wait_before_drop", "-5"),
    ("transport/link/tx/sequence_number_resolution", "'16bit'"),
    ("transport/link/protocols", '["tcp", "foo"]'),
    ("transport/multicast/join_interval", "null"),
    ("transport/auth/usrpwd", '{user: "u", password: "p"}'),
    ("transport/auth/usrpwd/user", '"u"'),
    ("routing/peer", '{mode: "x"}'),
    ("routing/router/linkstate/transport_weights", '[{dst_zid: "1", weight: 3}]'),
    ("namespace", '"a/b"'),
    ("aggregation/subscribers", '["a/**"]'),
    ("metadata", '{a: [1, 2.5, "ü", null, true]}'),
    ("region_name", '"x"'),
    ("downsampling", '[{messages: ["put"], rules: [{key_expr: "a", freq: 1}]}]'),
    ("low_pass_filter", '[{messages: ["put"], key_exprs: ["a"], size_limit: 10}]'),
    ("stats/filters", '[{key: "a"}]'),
    ("plugins_loading/search_dirs", '["a", {kind: "path", value: "b"}]'),
    ("qos/network", '[{messages: ["put"], overwrite: {priority: +1}, payload_size: "0..9"}]'),
    ("qos/network", '[{messages: ["put"], overwrite: {priority: "data"}, qos: {express: true}}]'),
    (
        "qos/publication",
        '[{key_exprs: ["a"], config: {priority: "data", congestion_control: "block_first"}}]',
    ),
    (
        "access_control",
        """{enabled: true,
            rules: [{id: "r", key_exprs: ["a"], messages: ["put"], permission: "allow"}],
            subjects: [{id: "s", zids: ["1"]}],
            policies: [{rules: ["r"], subjects: ["s"]}]}""",
    ),
    ("adminspace/permissions/read", "false"),
    ("timestamping/enabled", "{router: true}"),
]


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_what_is_inserted_reads_as_in_the_reference(key: str, value: str) -> None:
    ours, theirs = Config(), zenoh.Config()
    ours.insert_json5(key, value)
    theirs.insert_json5(key, value)
    assert ours.get_json(key) == theirs.get_json(key)
    assert str(ours) == str(theirs)


REFUSED = [
    ("nokey", "1", "unknown key `nokey`"),
    ("", "{}", "unknown key"),
    ("connect/endpoints/router", '["tcp/a:1"]', "unknown key `connect/endpoints/router`"),
    ("mode", "1", 'mode: is 1, but one of "router", "peer", "client" is wanted'),
    ("mode", "'zzz'", 'mode: is "zzz"'),
    ("id", '"XYZ"', "id: 'XYZ' is not a Zenoh id"),
    ("id", '"0"', "the first not 0"),
    ("id", '"' + "a" * 33 + '"', "1 to 32 lower-case"),
    ("scouting", "null", "scouting: is null, but an object is wanted"),
    ("scouting", "{multicast: {ttl: 'x'}}", "scouting/multicast/ttl: is"),
    ("scouting", "{multicast: {enable: true}}", "unknown field `enable`"),
    ("scouting/multicast/address", "'foo:1'", "scouting/multicast/address"),
    ("scouting/multicast/autoconnect", '"peer"', "a list is wanted"),
    ("scouting/multicast/autoconnect", '{peer: ["router", "x"]}', "autoconnect/peer/1"),
    ("scouting/multicast/autoconnect", "{peer: [], foo: []}", "unknown field `foo`"),
    ("scouting/multicast/autoconnect_strategy", '"x"', "greater-zid"),
    ("connect/timeout_ms", "1.5", "an integer"),
    ("connect/timeout_ms", "'1'", "an integer"),
    ("connect/exit_on_failure", "1", "true or false"),
    ("connect/endpoints", '["xx"]', "connect/endpoints/0: 'xx' is not an endpoint"),
    ("connect/endpoints", '"tcp/a:1"', "a list is wanted"),
    ("connect/endpoints", '[{locators: ["tcp/a:1"]}]', "missing field `strategy`"),
    ("transport/link/tx/batch_size", "'1'", "an integer from 0 to 65535"),
    ("transport/link/tx/sequence_number_resolution", "'64bit'", "at most 32bit"),
    ("transport/link/tx/sequence_number_resolution", "'7bit'", "8bit"),
    ("transport/link/tx/queue/size", "{data: 17}", "queue/size/data: is 17"),
    ("transport/auth/usrpwd", '{user: "u"}', "only one of user and password"),
    ("transport/shared_memory/transport_optimization/pool_size", "0", "pool_size: is 0"),
    ("namespace", '"a/*"', "without wildcards"),
    ("namespace", '"a//b"', "Invalid Key Expr"),
    ("aggregation/subscribers", '["a/**/**"]', "aggregation/subscribers/0"),
    ("region_name", '""', "1 to 32 bytes"),
    ("region_name", '"' + "x" * 33 + '"', "1 to 32 bytes"),
    ("downsampling", "[{rules: []}]", "downsampling/0: missing field `messages`"),
    ("downsampling", '[{messages: [], rules: [{key_expr: "a", freq: 1}]}]', "not empty"),
    ("qos/network", '[{messages: ["put"], overwrite: {priority: 8}}]', "priority"),
    ("routing/router/linkstate/transport_weights", '[{dst_zid: "1", weight: 0}]', "weight"),
    ("access_control/default_permission", "'x'", "allow"),
    ("plugins_loading/search_dirs", '"a:b"', "a list is wanted"),
    ("mode", "{", "JSON5"),
    ("mode", "", "JSON5"),
    ("scouting", "{delay: 1, delay: 2}", "duplicate field `delay`"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED)
def test_what_the_reference_refuses_is_refused_and_changes_nothing(
    key: str, value: str, words: str
) -> None:
    with pytest.raises(zenoh.ZError):
        zenoh.Config().insert_json5(key, value)
    config = Config()
    with pytest.raises(ZError) as refusal:
        config.insert_json5(key, value)
    assert words in str(refusal.value)
    assert config == Config()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transport/link/tx/batch_size", "70000"),
        ("transport/link/tx/batch_size", "-1"),
        ("transport/link/tx/batch_size", "1.5"),
        ("transport/link/tx/queue/size/data", "17"),
        ("queries_default_timeout", "-1"),
        ("transport/link/rx/max_message_size", "99999999999999999999"),
    ],
)
def test_numbers_that_the_reference_bends_are_refused(key: str, value: str) -> None:
    zenoh.Config().insert_json5(key, value)
    with pytest.raises(ZError, match=f"^{key}: is {value}"):
        Config().insert_json5(key, value)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "[Infinity]"])
def test_what_json_cannot_say_is_refused(value: str) -> None:
    with pytest.raises(ZError, match="is not a value"):
        Config().insert_json5("metadata", value)


@pytest.mark.parametrize("key", ["nokey", "", "listen/endpoints/router", "plugins/foo", "mode/x"])
def test_reading_what_is_not_there(key: str) -> None:
    with pytest.raises(zenoh.ZError, match="NoMatchingKey"):
        zenoh.Config().get_json(key)
    with pytest.raises(ZError, match="NoMatchingKey"):
        Config().get_json(key)


def test_an_error_names_the_nearest_key() -> None:
    with pytest.raises(ZError, match="did you mean `multicast`"):
        Config().insert_json5("scouting/multicas/enabled", "true")
    with pytest.raises(ZError, match="did you mean `endpoints`") as refusal:
        Config.from_json5("{listen: {endpoint: []}}")
    assert str(refusal.value).startswith("listen: unknown field `endpoint`")


def test_a_section_that_is_inserted_resets_what_it_does_not_name() -> None:
    config = Config()
    config.insert_json5("scouting/multicast/ttl", "4")
    config.insert_json5("scouting/multicast", "{enabled: false}")
    assert config.get_json("scouting/multicast/ttl") == "null"


def test_arguments_are_texts() -> None:
    config: Any = Config()
    for call in (
        lambda: config.insert_json5("mode", 1),
        lambda: config.insert_json5(1, "1"),
        lambda: config.get_json(1),
        lambda: Config.from_json5(config),
        lambda: Config.from_file(config),
    ):
        with pytest.raises(TypeError):
            call()
    assert config.get_json(key="mode") == "null"
    config.insert_json5(key="mode", value="'peer'")
    assert Config.from_json5(json="{mode: 'peer'}") == config


@pytest.mark.parametrize(
    "text",
    [
        "{mode: 'peer', /*c*/ }",
        "// line\n{'mode': \"client\", id: 'a\\u0062',}",
        '{"scouting": {"delay": +10, "timeout": 0xFF}}',
        "{plugins: {a: {x: .5, y: 5., private: 1, z: [1, 2,]}}}",
        "\ufeff{}",
    ],
)
def test_json5_is_read_as_by_the_reference(text: str) -> None:
    try:
        expected = str(zenoh.Config.from_json5(text))
    except zenoh.ZError:
        with pytest.raises(ZError):
            Config.from_json5(text)
        return
    assert str(Config.from_json5(text)) == expected


def test_text_that_nests_without_end_is_an_error() -> None:
    with pytest.raises(ZError):
        Config.from_json5("[" * 100_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{mode: 'client', connect: {endpoints: ['tcp/a:1']}}"),
        ("a.json5", "{mode: 'client', connect: {endpoints: ['tcp/a:1']}}"),
        ("a.yaml", "mode: client\nconnect:\n  endpoints: [tcp/a:1]\n"),
        ("a.yml", "mode: client\nconnect: {endpoints: [tcp/a:1]}\n"),
        ("a.toml", "mode = 'client'\n[connect]\nendpoints = ['tcp/a:1']\n"),
    ],
)
def test_a_file_of_any_format_is_read_as_the_reference_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    config = Config.from_file(path)
    assert config == Config.from_json5("{mode: 'client', connect: {endpoints: ['tcp/a:1']}}")
    assert str(config) == str(zenoh.Config.from_file(path)) == str(Config.from_file(str(path)))
    monkeypatch.setenv(Config.DEFAULT_CONFIG_PATH_ENV, str(path))
    assert Config.from_env() == config


@pytest.mark.parametrize(
    "text",
    [
        "mode: client\nconnect:\n#  endpoints: [tcp/a:1]\n",
        "transport:\n  link:\n    tls:\n    tcp:\n  unicast:\n  auth:\n    usrpwd:\n",
        "gateway:\nqos:\ndownsampling:\naggregation:\n  publishers:\n",
        "connect:\n  retry:\nmetadata:\nnamespace:\n",
        "# mode: client\n",
        "plugins:\n",
        "transport:\n  unicast:\n    lowlatency:\n",
        "mode: client\nmode: peer\n",
        "transport:\n  unicast: {max_links: 2}\n  unicast: {lowlatency: true}\n",
        "connect: {endpoints: [tcp/a:1]}\nlisten: {endpoints: [tcp/a:1]}\n",
        "metadata: {began: 2020-01-01, again: {began: 2020-01-01T10:20:30Z}}\n",
    ],
)
def test_a_yaml_file_with_empty_sections_repeated_keys_or_dates_is_read_as_by_the_reference(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    try:
        expected = str(zenoh.Config.from_file(path))
    except zenoh.ZError:
        with pytest.raises(ZError):
            Config.from_file(path)
        return
    assert str(Config.from_file(path)) == expected


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a", "{}", "use one of .json"),
        ("a.ini", "{}", "use one of .json"),
        ("a.json5", " ", "empty"),
        ("a.json5", "{foo: 1}", "unknown field `foo`"),
        ("a.yaml", "foo: 1", "unknown field `foo`"),
        ("a.yaml", "{", "flow node"),
        ("a.yaml", "listen: {}\nmode: peer\nmode: peer", "duplicate field `mode`"),
        ("a.yaml", "[]", "an object is wanted"),
        ("a.toml", "mode 1", "line 1"),
        ("a.json", b"\xff", "byte 0 is not UTF-8"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ZError) as refusal:
        Config.from_file(path)
    assert words in str(refusal.value)
    assert name in str(refusal.value)


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZError, match="No such file"):
        Config.from_file(tmp_path / "a.json5")
    (tmp_path / "d.json5").mkdir()
    with pytest.raises(ZError, match="Is a directory"):
        Config.from_file(tmp_path / "d.json5")
    monkeypatch.delenv("ZENOH_CONFIG", raising=False)
    with pytest.raises(ZError, match="ZENOH_CONFIG"):
        Config.from_env()


def test_a_config_is_a_value_that_changes() -> None:
    one = Config.from_json5("{transport: {auth: {usrpwd: {user: 'u', password: 'p'}}}}")
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one
        assert other != Config()
        other.insert_json5("transport/auth/usrpwd/user", "'v'")
        assert other != one
        assert pickle.loads(pickle.dumps(other)) == other
    assert one != "config"
    with pytest.raises(TypeError):
        hash(one)


def test_a_half_of_user_and_password_can_be_copied() -> None:
    config = Config()
    config.insert_json5("transport/auth/usrpwd/user", "'u'")
    assert pickle.loads(pickle.dumps(config)) == config


def test_repr_shows_what_was_changed_and_no_secret() -> None:
    config = Config.from_json5(
        "{mode: 'client', transport: {link: {tls: {listen_private_key_base64: 'hidden'}},"
        " auth: {usrpwd: {user: 'u', password: 'secret'}}}}"
    )
    shown = repr(config)
    assert 'mode="client"' in shown
    assert 'user="u"' in shown
    assert "secret" not in shown
    assert "hidden" not in shown
    assert "hidden" not in str(config)


def test_private_parts_of_plugins_are_not_shown() -> None:
    ours, theirs = Config(), zenoh.Config()
    for config in (ours, theirs):
        config.insert_json5("plugins/foo", "{a: {private: 1, b: 2}, private: 3}")
    assert ours.get_json("plugins") == theirs.get_json("plugins")
    assert ours.get_json("plugins/foo/private") == theirs.get_json("plugins/foo/private")
    assert str(ours) == str(theirs)


def test_lists_below_plugins() -> None:
    ours, theirs = Config(), zenoh.Config()
    for config in (ours, theirs):
        config.insert_json5("plugins/foo/list/+", "1")
        config.insert_json5("plugins/foo/list/+", "2")
        config.insert_json5("plugins/foo/list/0", "3")
    assert ours.get_json("plugins/foo/list") == theirs.get_json("plugins/foo/list") == "[3,2]"
    for key in ("plugins/foo/list/5", "plugins/foo/list/x", "plugins/foo/list/0/deeper"):
        with pytest.raises(zenoh.ZError):
            theirs.insert_json5(key, "1")
        with pytest.raises(ZError, match="not found"):
            ours.insert_json5(key, "1")


@given(st.lists(st.sampled_from(ACCEPTED), max_size=6))
def test_what_a_config_says_of_itself_makes_the_same_config(chosen: list[tuple[str, str]]) -> None:
    config = Config()
    for key, value in chosen:
        if "base64" not in key and "routing/peer" not in key and "usrpwd/user" not in key:
            config.insert_json5(key, value)
    if "private" not in config.get_json("plugins"):
        again = Config.from_json5(str(config))
        assert str(again) == str(config)
        assert dict(changes(again)).keys() == dict(changes(Config.from_json5(str(again)))).keys()


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_text_is_more_than_an_error(key: str, value: str) -> None:
    config = Config()
    try:
        config.insert_json5(key, value)
    except ZError:
        assert config == Config()
    try:
        config.get_json(key)
    except ZError as error:
        assert "NoMatchingKey" in str(error)


@pytest.mark.parametrize(
    ("key", "router", "peer", "client"),
    [
        ("mode", "peer", "peer", "peer"),
        ("connect/timeout_ms", -1, -1, 0),
        ("connect/exit_on_failure", False, False, True),
        ("connect/endpoints", [], [], []),
        ("listen/timeout_ms", 0, 0, 0),
        ("listen/exit_on_failure", True, True, True),
        ("listen/endpoints", ["tcp/[::]:7447"], ["tcp/[::]:0"], []),
        ("scouting/timeout", 3000, 3000, 3000),
        ("scouting/delay", 500, 500, 500),
        ("scouting/multicast/enabled", True, True, True),
        ("scouting/multicast/address", *["224.0.0.224:7446"] * 3),
        ("scouting/multicast/autoconnect", [], *[["router", "peer", "client"]] * 2),
        ("scouting/multicast/listen", True, True, True),
        ("scouting/gossip/target", ["router", "peer"], ["router", "peer"], []),
        ("timestamping/enabled", True, False, False),
        ("timestamping/drop_future_timestamp", False, False, False),
        ("queries_default_timeout", 10_000, 10_000, 10_000),
        ("open/return_conditions/declares", True, True, True),
        ("transport/link/tx/lease", 10_000, 10_000, 10_000),
        ("namespace", None, None, None),
    ],
)
def test_what_unset_means_by_mode(key: str, router: Any, peer: Any, client: Any) -> None:
    config = Config()
    values = [for_mode(config, key, role) for role in (ROUTER, PEER, CLIENT)]
    assert values == [router, peer, client]


def test_a_mode_that_is_left_out_has_its_default() -> None:
    config = Config.from_json5("{connect: {timeout_ms: {router: 5, peer: 0}}}")
    values = [for_mode(config, "connect/timeout_ms", role) for role in (ROUTER, PEER, CLIENT)]
    assert values == [5, 0, 0]
    config.insert_json5("connect/timeout_ms", "7")
    assert for_mode(config, "connect/timeout_ms", PEER) == 7
    config.insert_json5("metadata", "{peer: 1}")
    assert for_mode(config, "metadata", PEER) == {"peer": 1}


def test_what_for_mode_gives_is_not_the_config_s_own() -> None:
    config = Config()
    for_mode(config, "listen/endpoints", PEER).append("tcp/a:1")
    for_mode(config, "connect/endpoints", PEER).append("tcp/a:1")
    assert config == Config()
    assert for_mode(Config(), "scouting/multicast/autoconnect", ROUTER) == []
