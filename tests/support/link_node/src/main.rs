// A node of zenoh 1.10.2 with links that the eclipse-zenoh wheel does not have.
// Arguments: MODE listen|connect ENDPOINT. Prints `open`; answers ping/** on pong/**; ends with stdin.
use std::io::Read;
use zenoh::{qos::CongestionControl, Wait};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut config = zenoh::Config::default();
    for (key, value) in [
        ("mode".to_string(), format!("\"{}\"", args[1])),
        ("scouting/multicast/enabled".to_string(), "false".to_string()),
        ("listen/endpoints".to_string(), "[]".to_string()),
        (format!("{}/endpoints", args[2]), format!("[\"{}\"]", args[3])),
    ] {
        config.insert_json5(&key, &value).unwrap();
    }
    let session = zenoh::open(config).wait().unwrap();
    let answering = session.clone();
    let _subscriber = session
        .declare_subscriber("ping/**")
        .callback(move |sample| {
            let key = sample.key_expr().as_str().replacen("ping", "pong", 1);
            let answer = answering.put(key, sample.payload().clone());
            answer.congestion_control(CongestionControl::Block).wait().unwrap();
        })
        .wait()
        .unwrap();
    println!("open");
    let _ = std::io::stdin().read(&mut [0u8; 1]);
    session.close().wait().unwrap();
}
