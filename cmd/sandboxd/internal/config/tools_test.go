package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWarm(t *testing.T) {
	cfg, err := parse(t.TempDir(), "c.yaml", "mcp_servers: [{id: a, command: x, warm: 3}, {id: b, command: x}]", env(nil))
	if err != nil || cfg.Servers[0].Warm != 3 || cfg.Servers[1].Warm != 0 {
		t.Fatalf("%+v, %v", cfg, err)
	}
	_, err = parse(t.TempDir(), "c.yaml", `
mcp_servers:
- {id: a, command: x, warm: 0}
- {id: b, command: x, warm: 17}
- {id: c, command: x, warm: yes}
- {id: d, command: x, warm: 1, policy: {limits: {wall: 10m}}}
- {id: e, url: 'https://e.example.com', warm: 1}
`, env(nil))
	want := []string{
		"mcp_servers[0].warm: want a whole number from 1 to 16 in plain decimal digits",
		"mcp_servers[1].warm: want a whole number from 1 to 16 in plain decimal digits",
		"mcp_servers[2].warm: want a whole number, got a string",
		"mcp_servers[3].warm: cannot stand beside a policy that limits wall: the time until somebody comes would count",
		"mcp_servers[4].warm: is for stdio servers; this one has transport http",
	}
	if diff := cmp.Diff(want, stripped(t, err)); diff != "" {
		t.Error(diff)
	}
}

func TestToolKeys(t *testing.T) {
	cfg, err := parse(t.TempDir(), "c.yaml", `
mcp_servers:
- id: a
  command: x
  pin: strict
  sharing: call
  idle_stop: 10m
  renames: {read_text_file: read}
  descriptions: {read_text_file: Reads a file.}
- {id: b, url: 'https://b.example.com', pin: 'off'}
`, env(nil))
	if err != nil {
		t.Fatal(err)
	}
	a := cfg.Servers[0]
	if a.Pin != "strict" || a.Sharing != "call" || a.IdleStop != 10*time.Minute || cfg.Servers[1].Pin != "off" {
		t.Errorf("%+v", a)
	}
	if diff := cmp.Diff([]map[string]string{{"read_text_file": "read"}, {"read_text_file": "Reads a file."}}, []map[string]string{a.Renames, a.Descriptions}); diff != "" {
		t.Error(diff)
	}
	_, err = parse(t.TempDir(), "c.yaml", `
mcp_servers:
- {id: a, command: x, pin: hard, sharing: all, idle_stop: -1s, renames: {a: 'x y', b: n, c: n, 'q"': z}, descriptions: [a]}
- {id: b, command: x, pin: '', descriptions: {a: '{{secrets.x}}', b: }}
`, env(nil))
	want := []string{
		"mcp_servers[0].pin: want strict, warn or off",
		"mcp_servers[0].sharing: want tenant, session or call",
		"mcp_servers[0].idle_stop: want a duration above zero such as 90s, 10m or 1h30m",
		"mcp_servers[0].renames.a: want letters, digits and _ - . / in a tool's name, 128 at most",
		"mcp_servers[0].renames.c: another tool is renamed to the same name",
		`mcp_servers[0].renames."q\"": is not a tool's name`,
		"mcp_servers[0].descriptions: want a mapping from tools' names to strings, got a list",
		"mcp_servers[1].pin: want strict, warn or off",
		"mcp_servers[1].descriptions.a: secrets are put into env and headers only: anyone may see this value",
		"mcp_servers[1].descriptions.b: has no value",
	}
	if diff := cmp.Diff(want, stripped(t, err)); diff != "" {
		t.Error(diff)
	}
}

func TestBoundsOfCalls(t *testing.T) {
	cfg, err := parse(t.TempDir(), "c.yaml", "max_in_flight: 9\nevent_results: true\nmcp_servers: [{id: a, url: 'https://e.example.com', call_timeout: 5m, max_in_flight: 2, max_waiting: 3}]", env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if s := cfg.Servers[0]; s.CallTimeout != 5*time.Minute || s.InFlight != 2 || s.Waiting != 3 || cfg.InFlight != 9 || !cfg.EventResults {
		t.Errorf("%+v", cfg)
	}
	for _, bad := range []string{"max_in_flight: 0", "max_waiting: 65537", "call_timeout: -1s", "max_in_flight: many"} {
		if _, err := parse(t.TempDir(), "c.yaml", "mcp_servers: [{id: a, command: x, "+bad+"}]", env(nil)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestSecretsAreKnownToBeTakenOut lists each value that was put in, once.
func TestSecretsAreKnownToBeTakenOut(t *testing.T) {
	cfg, err := parse(t.TempDir(), "c.yaml", "mcp_servers: [{id: a, command: x, env: {A: 'x {{secrets.k}}', B: '{{secrets.k}}'}}]", env(map[string]string{"SANDBOXD_SECRET_K": "value"}))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Secrets) != 1 || cfg.Secrets[0].Reveal() != "value" {
		t.Errorf("%d secrets", len(cfg.Secrets))
	}
}
