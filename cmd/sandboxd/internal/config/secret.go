package config

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[secret]"

// Secret is a value that must not be seen: every way to print, log or encode
// it shows a placeholder. Only Reveal gives it away.
type Secret struct{ value string }

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal returns the value, for the one place that needs it.
func (s Secret) Reveal() string { return s.value }

// String returns a placeholder.
func (Secret) String() string { return redacted }

// Format writes the placeholder for every verb, %#v and %x among them.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue logs the placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText encodes the placeholder, in JSON, YAML, TOML and XML alike.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Var is one variable or one header with its value, which may be a secret.
type Var struct {
	Name  string
	Value Secret
}
