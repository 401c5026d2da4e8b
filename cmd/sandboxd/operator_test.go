//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

// dnsServer answers every A query on loopback with one address, and counts.
func dnsServer(t *testing.T, answer string) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				out.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(answer).As4()},
				}}
			}
			if b, err := out.Pack(); err == nil {
				_, _ = pc.WriteTo(b, from)
			}
		}
	}()
	t.Cleanup(func() { _ = pc.Close(); <-done })
	return pc.LocalAddr().String()
}

// registryClients puts one script in the place of npm, and no other client. It keeps
// a note of each time that it is asked.
func registryClients(t *testing.T) (asked string) {
	t.Helper()
	dir := t.TempDir()
	asked = filepath.Join(dir, "asked")
	file(t, dir, "npm", "#!/bin/sh\necho x >>"+asked+"\necho 'registry = \"https://npm.example.com:8443/\"'\n", 0o700)
	t.Setenv("PATH", dir)
	t.Setenv("XDG_CONFIG_HOME", dir)
	return asked
}

func file(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// command runs sandboxd's command line in this process.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errOut)
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

func TestOperatorsSettingsReachTheGuard(t *testing.T) {
	registryClients(t)
	dir := t.TempDir()
	resolver := dnsServer(t, "10.20.0.7")
	policy := file(t, dir, "own.yaml", `egress:
  mode: allowlist
  allow:
    - host: "{{registry.npm}}"
    - host: other.example.com
    - cidr: 93.184.216.0/24
`, 0o600)
	plain := file(t, dir, "plain.yaml", "resolver: "+resolver+"\n", 0o600)
	trusting := file(t, dir, "trusting.yaml", "resolver: "+resolver+"\nrefuse_cidrs: [93.184.216.34/32]\nregistries: {npm: {trusted_cidrs: [10.20.0.0/16]}}\n", 0o600)
	for _, tc := range []struct {
		operator, target string
		want             netguard.Reason
	}{
		{plain, "https://npm.example.com:8443/x", netguard.ReasonAddress},
		{trusting, "https://npm.example.com:8443/x", ""},
		{trusting, "npm.example.com:443", netguard.ReasonPort},
		{trusting, "other.example.com:443", netguard.ReasonAddress}, // no registry's host
		{trusting, "10.20.0.7:8443", netguard.ReasonAddress},        // a literal
		{plain, "93.184.216.34:443", ""},
		{trusting, "93.184.216.34:443", netguard.ReasonAddress},
		{trusting, "93.184.216.35:443", ""},
	} {
		out, _, err := command(t, "policy", "explain", "--json", "--lookup", "--operator", tc.operator, "--policy", policy, tc.target)
		var x netguard.Explanation
		if jsonErr := json.Unmarshal([]byte(out), &x); jsonErr != nil {
			t.Fatalf("%s: %v %q", tc.target, err, out)
		}
		if x.Reason != tc.want || x.Allow != (tc.want == "") || x.Allow != (err == nil) {
			t.Errorf("%s under %s: %+v, %v; want %q", tc.target, filepath.Base(tc.operator), x, err, tc.want)
		}
	}
}

func TestFlagsComeBeforeTheOperatorsFile(t *testing.T) {
	dir := t.TempDir()
	op := file(t, dir, "op.yaml", "resolver: 192.0.2.1\nrecords: /nowhere/a\n", 0o600)
	log := slog.New(slog.DiscardHandler)
	for _, tc := range []struct{ flag, want string }{{"", "192.0.2.1"}, {"192.0.2.2:53", "192.0.2.2:53"}} {
		o := operator{file: op, resolver: tc.flag}
		if err := o.load(log); err != nil || o.resolver != tc.want {
			t.Errorf("resolver %q, %v; want %s", o.resolver, err, tc.want)
		}
	}
	for _, tc := range []struct{ flag, want string }{{"", "/nowhere/a"}, {"-", "-"}} {
		c := common{operator: operator{file: op}, records: tc.flag}
		if err := c.load(); err != nil || c.records != tc.want {
			t.Errorf("records %q, %v; want %s", c.records, err, tc.want)
		}
	}
}

func TestFaultyOperatorSettingsAreUsageErrors(t *testing.T) {
	dir := t.TempDir()
	bad := file(t, dir, "bad.yaml", "resolvr: x\n", 0o600)
	open := file(t, dir, "open.yaml", "resolver: 192.0.2.1\n", 0o600)
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	for op, says := range map[string]string{bad: "did you mean resolver?", open: "lets others in", filepath.Join(dir, "none"): "no such file"} {
		for _, args := range [][]string{
			{"run", "--operator", op, "--", "npx", "-y", "x"},
			{"serve", "--operator", op, "--config", "x.yaml"},
			{"doctor", "--operator", op},
			{"policy", "explain", "--operator", op, "a.example.com"},
		} {
			_, _, err := command(t, args...)
			if statusOf(err) != exitUsage || !strings.Contains(err.Error(), says) {
				t.Errorf("%v: %v; want %q", args, err, says)
			}
		}
	}
}

// statusOf is exitCode without its printing.
func statusOf(err error) int {
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

// TestClientsAreAskedOnlyWhenNeeded holds that a start which names no registry
// does not wait for npm.
func TestClientsAreAskedOnlyWhenNeeded(t *testing.T) {
	asked := registryClients(t)
	dir := t.TempDir()
	trusting := file(t, dir, "op.yaml", "resolver: 127.0.0.1\nregistries: {npm: {trusted_cidrs: [10.20.0.0/16]}}\n", 0o600)
	for _, args := range [][]string{
		{"policy", "show", "registries"},
		{"policy", "explain", "--policy", "public-web", "a.example.com"},
		{"policy", "explain", "--policy", "none", "a.example.com"},
	} {
		_, _, _ = command(t, append(args, "--operator", trusting)...)
	}
	c := common{operator: operator{file: trusting}}
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	none, err := c.policies(t.Context()).Find("none", "")
	if err != nil || looksUp(none) {
		t.Errorf("none looks names up: %v", err)
	}
	if _, err := c.guard(t.Context(), looksUp(none), netguard.Options{}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(asked); err == nil {
		t.Fatalf("npm was asked: %q", b)
	}
	web, err := c.policies(t.Context()).Find("public-web", "")
	if err != nil || !looksUp(web) {
		t.Errorf("public-web looks no name up: %v", err)
	}
	if got := c.trusted(t.Context(), policies.RegistryNames()); len(got) != 1 || len(got["npm.example.com"]) != 1 {
		t.Errorf("trusted hosts: %v", got)
	}
	if b, err := os.ReadFile(asked); err != nil || string(b) != "x\n" {
		t.Errorf("npm was asked %q, %v", b, err)
	}
}

func TestShowExpanded(t *testing.T) {
	registryClients(t)
	none := file(t, t.TempDir(), "op.yaml", "records: '-'\n", 0o600)
	out, warnings, err := command(t, "policy", "show", "registries", "--expanded", "--operator", none)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := netguard.DecodeConfig([]byte(out))
	if err != nil || len(cfg.Allow) != 1 || cfg.Allow[0].Host != "npm.example.com" || cfg.Allow[0].Ports[0] != "8443" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if strings.Count(warnings, "opens nothing") != 2 || strings.Contains(warnings, "registry.npm}} opens") {
		t.Errorf("warnings: %s", warnings)
	}
	own := file(t, t.TempDir(), "own.yaml", "egress: {mode: allowlist, pin_ttl: 90s}\n", 0o600)
	if out, _, err = command(t, "policy", "show", "--expanded", own, "--operator", none); err != nil {
		t.Fatal(err)
	}
	if cfg, err = netguard.DecodeConfig([]byte(out)); err != nil || cfg.PinTTL.String() != "1m30s" {
		t.Errorf("%s: %v", out, err)
	}
	if _, _, err = command(t, "policy", "show", "--expanded"); statusOf(err) != exitUsage {
		t.Errorf("without a name: %v", err)
	}
}

func TestCheckKnowsPlaceholders(t *testing.T) {
	registryClients(t)
	dir := t.TempDir()
	op := file(t, dir, "op.yaml", "records: '-'\n", 0o600)
	good := file(t, dir, "good.yaml", "egress: {mode: allowlist, allow: [{host: '{{registry.npm}}'}]}\n", 0o600)
	bad := file(t, dir, "bad.yaml", "egress: {mode: allowlist, allow: [{host: '{{registry.nmp}}'}]}\n", 0o600)
	if out, _, err := command(t, "policy", "check", "--strict", "--operator", op, good); err != nil {
		t.Errorf("%s%v", out, err)
	}
	if out, _, err := command(t, "policy", "check", "--operator", op, bad); err == nil || !strings.Contains(out, "bad.yaml:1:42: egress.allow[0].host") {
		t.Errorf("%s%v", out, err)
	}
}
