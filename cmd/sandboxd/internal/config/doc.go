// Package config reads what `sandboxd serve` is configured with: MCP servers
// in the terms of the engines that use them, as YAML or as TOML. Both forms
// become one tree and meet the same checks, and every fault of every file is
// reported at once with its file, line and column. It also reads the operator's
// settings, which no policy and no server's entry can change.
//
// It starts and dials nothing, and it may never put the value of a variable, a
// header or a secret into an error, a log or a document: such values are of
// type Secret.
package config
