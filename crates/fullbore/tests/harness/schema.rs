//! Lines of `--json` are as `docs/reference/events.schema.json` says, and have no key that it does not name.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::Value;

/// The schema as it is published: later versions may add keys.
fn published() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/events.schema.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// This version adds none: objects with named keys have no others.
fn closed(mut schema: Value) -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(close);
                // What is put together of several parts is closed part by part.
                if map.contains_key("properties") && !map.contains_key("$ref") && !map.contains_key("oneOf") {
                    map.insert("additionalProperties".into(), Value::Bool(false));
                }
            }
            Value::Array(values) => values.iter_mut().for_each(close),
            _ => {}
        }
    }
    // Variants that take over a structure name its keys by reference: they are left open.
    let variants = schema["oneOf"].as_array_mut().unwrap();
    let (by_reference, mut named): (Vec<Value>, Vec<Value>) =
        variants.drain(..).partition(|variant| variant.get("$ref").is_some() || variant.get("allOf").is_some());
    named.iter_mut().for_each(close);
    named.extend(by_reference);
    schema["oneOf"] = Value::Array(named);
    schema
}

/// The schema, read once.
pub fn schema() -> &'static Validator {
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| jsonschema::validator_for(&closed(published())).unwrap())
}

/// The events of these lines. Panics unless each is valid, an error comes before the summary, and nothing after it.
pub fn events(command: &str, stdout: &str) -> Vec<Value> {
    let parsed = |line: &str| -> Value {
        let event = serde_json::from_str(line).unwrap_or_else(|error| panic!("{command}: {error}: {line}"));
        if let Err(error) = schema().validate(&event) {
            panic!("{command}: {error} ({}): {line}", error.instance_path());
        }
        event
    };
    let events: Vec<Value> = stdout.lines().map(parsed).collect();
    for (place, event) in events.iter().enumerate().filter(|(_, event)| event["event"] == "summary") {
        assert_eq!(place + 1, events.len(), "{command}: something follows the summary: {stdout}");
        for key in ["command", "version", "exit_code", "duration_ms", "totals", "hosts"] {
            assert!(event.get(key).is_some(), "{command}: the summary has no {key}: {event}");
        }
    }
    events
}

/// Names of the events of a run that has a summary.
pub fn names(command: &str, stdout: &str) -> BTreeSet<String> {
    let events = events(command, stdout);
    assert!(events.last().is_some_and(|event| event["event"] == "summary"), "{command}: {stdout}");
    events.iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect()
}

/// A run that failed says so in an event with its exit code, and in the summary if there is one.
pub fn fails(command: &str, stdout: &str, code: i32, kind: &str) {
    let events = events(command, stdout);
    let errors: Vec<&Value> = events.iter().filter(|event| event["event"] == "error").collect();
    assert!(!errors.is_empty(), "{command}: no error: {stdout}");
    for error in errors {
        assert_eq!((&error["kind"], &error["exit_code"]), (&kind.into(), &code.into()), "{command}: {error}");
    }
    if let Some(summary) = events.last().filter(|event| event["event"] == "summary") {
        assert_eq!(summary["exit_code"], code, "{command}: {summary}");
    }
}
