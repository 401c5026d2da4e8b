package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// TestReload: SIGHUP changes egress policies under a running server, and a
// fault in the file leaves the old policy in force.
func TestReload(t *testing.T) {
	l := lab.New(t)
	l.DNS(map[string][]string{"allowed.example.com": {lab.AllowedV4}})
	l.HTTPS(lab.AllowedV4+":443", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "the allowed host")
	}), "allowed.example.com")
	policy := func(text string) {
		t.Helper()
		l.WriteFile("egress.yaml", text)
	}
	policy("egress:\n  mode: allowlist\n  allow: []\n")
	ca := l.WriteFile("ca.pem", l.CA.PEM)
	config := l.WriteFile("serve.yaml", fmt.Sprintf(`
mcp_servers:
  - id: fetch
    command: %s
    policy: %s
    isolation: wasm
    required: true
    env: {SSL_CERT_FILE: /ca.pem}
    mounts: ["%s:/ca.pem"]
`, fetchModule(t), filepath.Join(l.Home, "egress.yaml"), ca))
	s := startServe(t, l, []string{"SANDBOXD_CACHE=" + cache, "SANDBOXD_STATE=" + filepath.Join(l.Home, "state")},
		"--config", config, "--resolver", "127.0.0.1:53")

	fetch := func() string {
		t.Helper()
		_, r := s.call(t, "fetch", "fetch", `{"url":"https://allowed.example.com/"}`)
		return r.text()
	}
	reload := func(says string) {
		t.Helper()
		seen := len(s.stderr.String())
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, "serve says "+says, time.Minute, func() bool { return strings.Contains(s.stderr.String()[seen:], says) })
	}
	const reached = "the allowed host"

	if got := fetch(); strings.Contains(got, reached) {
		t.Fatalf("an empty policy let %q through", got)
	}
	policy("egress:\n  mode: allowlist\n  allow:\n    - host: allowed.example.com\n")
	reload("reloaded the egress policies of 1 server")
	if got := fetch(); !strings.Contains(got, reached) {
		t.Errorf("after the reload: %q\n%s", got, s.stderr)
	}
	policy("egress:\n  mode: allowlist\n  allw: []\n")
	reload("egress.yaml:3:3: egress: unknown key")
	if got := fetch(); !strings.Contains(got, reached) {
		t.Errorf("a faulty policy replaced the old one: %q", got)
	}
	policy("egress:\n  mode: allowlist\n  allow: []\n")
	reload("reloaded the egress policies of 1 server")
	if got := fetch(); strings.Contains(got, reached) {
		t.Errorf("the policy that forbids it let %q through", got)
	}
	select {
	case <-s.done:
		t.Errorf("serve ended\n%s", s.stderr)
	default:
	}
	_ = os.Remove(config)
}
