// A stdio MCP server in Rust, for wasm32-wasip1 and its standard library
// alone: echo, and a look at the clock, the environment and the files. It reads
// only what it needs of a message.
use std::collections::HashMap; // its hasher asks the host for random bytes
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The raw JSON value that follows "name": in a line.
fn member<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{}\":", name);
    let rest = &line[line.find(&key)? + key.len()..];
    let mut escaped = false;
    let end = if rest.starts_with('"') {
        let inner = rest[1..].char_indices().find(|&(_, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        inner?.0 + 2
    } else {
        rest.find(|c| ",}]".contains(c))?
    };
    Some(&rest[..end])
}

fn look() -> Result<String, String> {
    let began = Instant::now();
    thread::sleep(Duration::from_millis(20));
    if began.elapsed() < Duration::from_millis(20) {
        return Err("the clock stood still".into());
    }
    fs::create_dir_all("/data/a/b").map_err(|e| e.to_string())?;
    fs::write("/data/a/b/file", "text").map_err(|e| e.to_string())?;
    fs::rename("/data/a/b/file", "/data/a/moved").map_err(|e| e.to_string())?;
    let read = fs::read_to_string("/data/a/moved").map_err(|e| e.to_string())?;
    let mut seen = HashMap::new();
    for entry in fs::read_dir("/data/a").map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        seen.insert(entry.file_name().to_string_lossy().into_owned(), entry.path().is_dir());
    }
    fs::remove_dir_all("/data/a").map_err(|e| e.to_string())?;
    if fs::read("/data/../etc/passwd").is_ok() {
        return Err("a file above the mount was read".into());
    }
    Ok(format!("{} {} {:?} {:?}", env::var("NAME").unwrap_or_default(), read, seen.get("b"), seen.get("moved")))
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (id, method) = match (member(&line, "id"), member(&line, "method")) {
            (Some(id), Some(method)) => (id, method),
            _ => continue,
        };
        let result = match method {
            "\"initialize\"" => r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"rust","version":"1"}}"#.to_string(),
            "\"tools/list\"" => r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"look","inputSchema":{"type":"object"}}]}"#.to_string(),
            "\"tools/call\"" => {
                let text = match member(&line, "name") {
                    Some("\"look\"") => format!("{:?}", look().unwrap_or_else(|e| format!("failed: {}", e))),
                    _ => member(&line, "text").unwrap_or("\"\"").to_string(),
                };
                format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, text)
            }
            _ => "{}".to_string(),
        };
        writeln!(out, r#"{{"jsonrpc":"2.0","id":{},"result":{}}}"#, id, result)?;
        out.flush()?;
    }
    Ok(())
}
